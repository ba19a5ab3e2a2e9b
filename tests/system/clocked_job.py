"""A job that depends on the clock in all ways: its state expires, and each hit sets a timer.

It emits each hit with two counts of its page, the total and that since the last quiet period, and again when
its timer fires.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

QUIET = dt.timedelta(minutes=30)


@dataclass
class Hit:
    """A hit of a page."""

    page: str
    number: int


@dataclass
class Tally:
    """A hit, with the counts of its page; only its number when its timer fires."""

    page: str
    number: int
    hits: int
    recent: int
    called: bool


class Clocked(ps.ProcessFunction):
    """Counts hits by the clock."""

    hits = ps.ValueState(int)
    recent = ps.ValueState(int, ttl=ps.Ttl(QUIET))

    def process_record(self, hit: Hit, ctx: ps.Context) -> Iterator[Tally]:
        """Count a hit, and set its timer."""
        hits, recent = (self.hits.get() or 0) + 1, (self.recent.get() or 0) + 1
        self.hits.set(hits)
        self.recent.set(recent)
        at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=hit.number % 7)
        ctx.timers.register(at, str(hit.number))
        yield Tally(hit.page, hit.number, hits, recent, called=False)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Tally]:
        """Emit the number of the hit."""
        yield Tally(ctx.key, int(timer.name), 0, 0, called=True)


job = ps.Job("clocked")
hits = job.data_stream("hits", schema=Hit)
hits.key_by("page").process("clocked", Clocked(), output=Tally).sink_to("tallies")
