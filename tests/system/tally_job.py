"""A job whose output tells what its state was at each record: a record that counts twice, or not at all, shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Hit:
    """Something that a page got."""

    page: str
    number: int


@dataclass
class Tally:
    """A hit, and how many its page has with it."""

    page: str
    number: int
    hits: int


class Count(ps.ProcessFunction):
    """Counts the hits of each page, and keeps the last numbers."""

    hits = ps.ValueState(int)
    last = ps.ListState(int)

    def process_record(self, hit: Hit, ctx: ps.Context) -> Iterator[Tally]:
        """Count one."""
        count = (self.hits.get() or 0) + 1
        self.hits.set(count)
        self.last.set([*self.last.get(), hit.number][-3:])
        yield Tally(hit.page, hit.number, count)


job = ps.Job("tally")
hits = job.data_stream("hits", schema=Hit)
hits.key_by("page").process("count", Count()).sink_to("tallies")
