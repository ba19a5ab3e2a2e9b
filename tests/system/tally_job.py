"""A job whose output shows its state at each record, so that a record counted twice or not at all is visible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Hit:
    """A hit of a page."""

    page: str
    number: int


@dataclass
class Tally:
    """A hit, and its page's count so far."""

    page: str
    number: int
    hits: int


class Count(ps.ProcessFunction):
    """Counts the hits of each page, and keeps the last numbers."""

    hits = ps.ValueState(int)
    last = ps.ListState(int)

    def process_record(self, hit: Hit, ctx: ps.Context) -> Iterator[Tally]:
        """Count a hit."""
        count = (self.hits.get() or 0) + 1
        self.hits.set(count)
        self.last.set([*self.last.get(), hit.number][-3:])
        yield Tally(hit.page, hit.number, count)


job = ps.Job("tally")
hits = job.data_stream("hits", schema=Hit)
hits.key_by("page").process("count", Count()).sink_to("tallies")
