"""A job that goes by the clock in all ways: what it keeps expires, and each hit has a timer.

Each hit comes out with how many its page has, ever and since the page was last quiet, and once more when its timer is
called.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

QUIET = dt.timedelta(minutes=30)


@dataclass
class Hit:
    """Something that a page got."""

    page: str
    number: int


@dataclass
class Tally:
    """A hit, with the counts of its page; or its number alone, when its timer is called."""

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
        """Count one, and set its timer."""
        hits, recent = (self.hits.get() or 0) + 1, (self.recent.get() or 0) + 1
        self.hits.set(hits)
        self.recent.set(recent)
        at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=hit.number % 7)
        ctx.timers.register(at, str(hit.number))
        yield Tally(hit.page, hit.number, hits, recent, called=False)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Tally]:
        """Tell that the timer was called."""
        yield Tally(ctx.key, int(timer.name), 0, 0, called=True)


job = ps.Job("clocked")
hits = job.data_stream("hits", schema=Hit)
hits.key_by("page").process("clocked", Clocked(), output=Tally).sink_to("tallies")
