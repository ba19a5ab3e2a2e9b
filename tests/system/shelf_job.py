"""A job whose sources and sinks are user-defined classes: it keeps notes, and counts hits from the post by
page.
"""

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
class Counted:
    """The number of a hit, its page, and the page's count so far."""

    id: int
    value: str


class Count(ps.ProcessFunction):
    """Counts the hits of each page."""

    hits = ps.ValueState(int)

    def process_record(self, hit: Hit, ctx: ps.Context) -> Iterator[Counted]:
        """Count a hit."""
        count = (self.hits.get() or 0) + 1
        self.hits.set(count)
        yield Counted(hit.number, f"{hit.page} {count}")


job = ps.Job("shelf")
notes = job.data_stream("notes", schema="id BIGINT NOT NULL, value STRING NOT NULL")
notes.where("value <> ''").sink_to("kept")
letters = job.data_stream("letters", schema=Hit)
parcels = job.data_stream("parcels", schema=Hit)
letters.union(parcels).key_by("page").process("count", Count()).sink_to("counted")
