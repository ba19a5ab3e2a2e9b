"""Emission causes: the origins of the records that caused the output of a step."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa

from penstock.operators.record_blocks import OFFSET, Block

__all__ = ["Causes", "causes_in", "place_name"]


@dataclass(frozen=True)
class Causes:
    """For each emitted record the place of the record that caused it, as text, and the offset there.

    They are the same whenever a record is processed again, whichever records are processed with it.
    """

    places: pa.Array
    offsets: pa.Array

    def take(self, rows: pa.Array) -> Causes:
        """Return the causes of some of the records."""
        return Causes(self.places.take(rows), self.offsets.take(rows))

    def slice(self, begin: int, count: int) -> Causes:
        """Return the causes of consecutive records."""
        return Causes(self.places.slice(begin, count), self.offsets.slice(begin, count))


def place_name(*parts: str) -> str:
    """Return the name of a place from its parts, without the empty ones."""
    return "/".join(quote(part, safe="") for part in parts if part)


def causes_in(block: object) -> Causes:
    """Return the causes of emissions, one for each record of a block. Timers have no block."""
    assert isinstance(block, Block), "no record causes what a timer emits"
    place = place_name(block.branch, block.stream, block.partition)
    return Causes(pa.repeat(place, block.batch.num_rows), block.batch.column(OFFSET))
