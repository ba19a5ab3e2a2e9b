"""Distinct counts: the number of distinct values of a field in each window; exact if small, else estimated by a sketch.

The sketch of a window keeps the smallest hashes of its values, up to a number that depends on the accuracy. Its limit
is the smallest hash that it has dropped. Since hashes are uniformly distributed, the fraction of all hashes below the
limit yields the number of values (Bar-Yossef et al., Counting Distinct Elements in a Data Stream, RANDOM 2002; Beyer
et al., On Synopses for Distinct-Value Estimation Under Multiset Operations, SIGMOD 2007; with a limit, Dasgupta et al.,
A Framework for Estimating Stream Expression Cardinalities, ICDT 2016). The result depends neither on the order of the
values nor on their distribution over merged sketches.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import JobDefinitionError
from penstock.windows.column_aggregates import NEW, ColumnAggregate, mask_empty
from penstock.windows.value_hashes import BITS, column_hashes, value_hash
from penstock.windows.window_parameters import Parameter

__all__ = ["DEFAULT_ACCURACY", "Distinct", "DistinctCount", "Sketch", "SketchColumns"]

DEFAULT_ACCURACY: Final = 0.03
_FINEST: Final = 0.005
_COARSEST: Final = 0.25

_NONE: Final = -1
"""The limit of a sketch that has dropped nothing."""
_ALL: Final = 2.0**BITS
_MOST: Final = math.nextafter(2.0**63, 0.0)
"""The largest double that fits into a 64-bit integer."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sketch:
    """The sketch of the values in a window.

    `hashes` are the smallest of their hashes, sorted and distinct. `limit` is the smallest dropped hash, larger than
    all of these; None while none has been dropped.
    """

    hashes: tuple[int, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Distinct:
    """The number of distinct values."""

    distinct: int


@dataclass(frozen=True)
class SketchColumns:
    """Sketches as columns: the concatenated hashes, the offsets of each sketch, and the limits."""

    hashes: Ints
    offsets: Ints
    limits: Ints

    @classmethod
    def of(cls, stored: pa.Array) -> Self:
        """Read stored sketches."""
        lists = pc.struct_field(stored, "hashes")
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
        limits = pc.struct_field(stored, "limit").fill_null(_NONE).to_numpy()
        return cls(pc.list_flatten(lists).to_numpy(), _offsets(lengths), limits)

    @property
    def lengths(self) -> Ints:
        """The number of hashes of each sketch."""
        return np.diff(self.offsets)

    def take(self, rows: Ints) -> Self:
        """Return the sketches of some rows, which may contain NEW."""
        lists = pa.LargeListArray.from_arrays(self.offsets, self.hashes)
        # Arrow copies list by list.
        taken = lists.take(pa.array(rows, mask=rows == NEW))
        lengths = taken.value_lengths().fill_null(0).to_numpy()
        return type(self)(taken.flatten().to_numpy(), _offsets(lengths), np.append(self.limits, _NONE)[rows])

    def to_arrow(self, kind: pa.DataType, holds: Mask) -> pa.Array:
        """Return the stored form, with a null for each window that `holds` no records."""
        offsets = pa.array(self.offsets, pa.int32())
        lists = pa.ListArray.from_arrays(offsets, self.hashes, type=kind.field("hashes").type)
        limits = mask_empty(self.limits, self.limits == _NONE)
        return pa.StructArray.from_arrays([lists, limits], fields=list(kind), mask=pa.array(~holds))

    def add(self, places: Ints, hashes: Ints, most: int) -> Self:
        """Return the sketches with more hashes, each added to the sketch in `places`, which keeps at most `most`."""
        grows = np.zeros(len(self.limits), bool)
        grows[places] = True
        limits = self.limits[places]
        below = (limits == _NONE) | (hashes < limits)
        places, hashes = _deduplicate(places[below], hashes[below])
        at = self._find(places, hashes)
        new = (at == self.offsets[places + 1]) | (np.append(self.hashes, _NONE)[at] != hashes)
        places, hashes = places[new], hashes[new]
        lengths = self.lengths + np.bincount(places, minlength=len(grows))
        # Each sketch keeps its smallest hashes; the next one is its limit.
        all_hashes, limits = np.insert(self.hashes, at[new], hashes), self.limits.copy()
        longer = grows & (lengths > most)
        starts = _offsets(lengths)[:-1]
        limits[longer] = all_hashes[starts[longer] + most]
        kept = np.where(longer, most, lengths)
        rank = np.arange(len(all_hashes)) - np.repeat(starts, lengths)
        return type(self)(all_hashes[rank < np.repeat(kept, lengths)], _offsets(kept), limits)

    def _find(self, places: Ints, hashes: Ints) -> Ints:
        """Return the position of each hash among those of its sketch, found or not: all at once, by bisection."""
        low, high = self.offsets[places], self.offsets[places + 1]
        while (searched := low < high).any():
            middle = (low + high) // 2
            # A position that is already found may be after the last hash.
            is_above = self.hashes[np.minimum(middle, len(self.hashes) - 1)] < hashes
            low = np.where(searched & is_above, middle + 1, low)
            high = np.where(searched & ~is_above, middle, high)
        return low

    def estimates(self) -> Ints:
        """Return the number of distinct values of each sketch."""
        counts, over = self.lengths, self.limits != _NONE
        counts[over] = np.minimum(np.rint(counts[over] * _ALL / self.limits[over]), _MOST).astype(np.int64)
        return counts


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _deduplicate(places: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """Return the distinct hashes of each place, sorted."""
    order = np.lexsort((hashes, places))
    places, hashes = places[order], hashes[order]
    first = np.ones(len(places), bool)
    first[1:] = (places[1:] != places[:-1]) | (hashes[1:] != hashes[:-1])
    return places[first], hashes[first]


class DistinctCount(ColumnAggregate[Sketch, Distinct]):
    """The number of distinct values of a field. Null values are not counted.

    `accuracy` is the relative standard error of the estimate, and a parameter of the windows. A change applies to a
    window from its next value on.
    """

    held = SketchColumns

    def __init__(self, field: str, accuracy: Any = DEFAULT_ACCURACY) -> None:
        self.field = field
        self.accuracy: Final = accuracy if isinstance(accuracy, Parameter) else Parameter(accuracy)
        self.accuracy.read_with(_read_accuracy)
        self.accuracy.is_fractional = True

    def create_accumulator(self) -> Sketch:
        """Return the sketch of no values."""
        return Sketch()

    def add(self, record: Any, sketch: Sketch) -> Sketch:
        """Add a record."""
        assert self.field is not None
        value = getattr(record, self.field)
        if value is None:
            return sketch
        found = value_hash(value)
        hashes, limit = sketch.hashes, sketch.limit
        if limit is None or found < limit:
            at = bisect_left(hashes, found)
            if at == len(hashes) or hashes[at] != found:
                hashes = (*hashes[:at], found, *hashes[at:])
        return self._bounded(hashes, limit)

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Merge the values of two windows."""
        limit = min((limit for limit in (a.limit, b.limit) if limit is not None), default=None)
        hashes = sorted({*a.hashes, *b.hashes})
        return self._bounded(tuple(hashes if limit is None else hashes[: bisect_left(hashes, limit)]), limit)

    def get_result(self, sketch: Sketch) -> Distinct:
        """Return the estimate."""
        count = len(sketch.hashes)
        if sketch.limit is None:
            return Distinct(count)
        return Distinct(int(min(round(count * _ALL / sketch.limit), _MOST)))

    def values(self, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, Ints] | None:
        """Return the hashes of the values."""
        column = pa.concat_arrays([batch.column(self.field) for batch in batches])
        has_value = column.is_valid().to_numpy(zero_copy_only=False)
        hashes = np.zeros(len(column), np.int64)
        hashes[has_value] = column_hashes(column.drop_null())
        return has_value, hashes

    def add_all(self, held: SketchColumns, places: Ints, values: Ints) -> SketchColumns:
        """Add hashes."""
        return held.add(places, values, self.accuracy.value)

    def results(self, held: SketchColumns) -> list[pa.Array]:
        """Return the estimates."""
        return [pa.array(held.estimates())]

    def _bounded(self, hashes: tuple[int, ...], limit: int | None) -> Sketch:
        most = self.accuracy.value
        return Sketch(hashes, limit) if len(hashes) <= most else Sketch(hashes[:most], hashes[most])


def _read_accuracy(value: Any) -> int:
    """Return how many hashes to keep for an accuracy: the standard error with k hashes is below 1 / sqrt(k - 1)."""
    if not isinstance(value, float) or not _FINEST <= value <= _COARSEST:
        raise JobDefinitionError(
            f"The accuracy of a distinct count is {value!r}; give its relative standard error, "
            f"{_FINEST} to {_COARSEST}."
        )
    return math.ceil(1 / (value * value)) + 1
