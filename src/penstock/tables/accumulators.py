"""Accumulators: counts, sums, extremes and first values of groups, as columns with a row per group.

An accumulator is described once, and opened on the stored states of some groups in each run.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import Field, type_of_fields
from penstock.state.values import KeyedState, ValueState
from penstock.tables.scalar_states import ScalarState
from penstock.tables.value_order import groups_of_codes, order_codes
from penstock.tables.wide_sums import WideSums
from penstock.windows.distinct_counts import DistinctCount, Sketch, SketchColumns

__all__ = [
    "Accumulator",
    "CountValues",
    "EstimatedDistinct",
    "Extreme",
    "FirstValue",
    "Given",
    "Opened",
    "SumOf",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Given:
    """The argument of an aggregate in some records: the group of each value that counts, and the value.

    `signs` are 1 or -1 for values that are added or taken away; None if all are added. `orders` has the values that
    order them, if any do.
    """

    def __init__(
        self, places: Ints, values: pa.Array, signs: Ints | None, orders: pa.Array | None = None
    ) -> None:
        if values.null_count:
            valid = values.is_valid()
            mask = valid.to_numpy(zero_copy_only=False)
            values = values.filter(valid)
            places, signs = places[mask], None if signs is None else signs[mask]
            orders = None if orders is None else orders.filter(valid)
        self.places: Final = places
        self.values: Final = values
        self.signs: Final = signs
        self.orders: Final = orders


class Opened(Protocol):
    """An accumulator on the states of some groups."""

    def add(self, given: Given) -> None:
        """Add values to their groups."""

    def results(self) -> pa.Array:
        """Return the result of each group, in the type of the aggregate."""

    def beyond(self) -> Mask | None:
        """Return which groups have a result that its type cannot hold, and that becomes null; None if it always can."""

    def to_arrow(self, holds: Mask) -> pa.Array:
        """Return the stored states, null for groups that hold nothing."""


class Accumulator(Protocol):
    """Accumulates the argument of an aggregate: `argument` is its field, and `order` the field that orders it."""

    @property
    def result(self) -> Field:
        """The field of the result."""

    def state(self) -> KeyedState:
        """Return the declaration of the state."""

    def open(self, stored: pa.Array) -> Opened:
        """Return the accumulator on stored states."""


class CountValues:
    """The number of values."""

    def __init__(self, name: str) -> None:
        self.result = Field(name, int, pa.int64(), nullable=False)

    def state(self) -> KeyedState:
        """Declare the state: an integer."""
        return ValueState(int)

    def open(self, stored: pa.Array) -> Opened:
        """Read the counts."""
        return _OpenCounts(stored)


class _OpenCounts:
    def __init__(self, stored: pa.Array) -> None:
        self._counts: Final[Ints] = stored.fill_null(0).to_numpy(zero_copy_only=False).copy()

    def add(self, given: Given) -> None:
        if given.signs is None:
            self._counts[:] += np.bincount(given.places, minlength=len(self._counts))
        else:
            np.add.at(self._counts, given.places, given.signs)

    def results(self) -> pa.Array:
        # A copy, since the counts continue.
        return pa.array(self._counts.copy())

    def beyond(self) -> Mask | None:
        return None

    def to_arrow(self, holds: Mask) -> pa.Array:
        return pa.array(np.where(holds, self._counts, 0), mask=~holds)


class SumOf:
    """The sum or the average of numbers. Those of integers and decimals are exact.

    Doubles are added in the order of the records. If they may be taken away (`retracts`), their infinities and NaN are
    counted instead.
    """

    def __init__(self, name: str, argument: Field, *, averages: bool, retracts: bool) -> None:
        self._averages: Final = averages
        self._retracts: Final = retracts
        self._argument: Final = argument.arrow_type
        self.result = Field(name, *_sum_type(argument.arrow_type, averages=averages), nullable=True)
        self.is_wide: Final = not pa.types.is_floating(argument.arrow_type)
        fields = [Field("count", int, pa.int64(), nullable=False)]
        if self.is_wide:
            scale = argument.arrow_type.scale if pa.types.is_decimal(argument.arrow_type) else 0
            self._total: Final = pa.decimal128(38, scale)
            fields.append(Field("total", _decimal(), self._total, nullable=False))
        else:
            fields.append(Field("total", float, pa.float64(), nullable=False))
            if retracts:
                fields += [Field(special, int, pa.int64(), nullable=False) for special in _SPECIAL]
        self._record: Final = type_of_fields(fields)

    @property
    def state_type(self) -> pa.DataType:
        """The stored type of the state."""
        return pa.struct([pa.field(field.name, field.arrow_type) for field in self._record.fields])

    def state(self) -> KeyedState:
        """Declare the state: the number of values and their total."""
        return ValueState(self._record)

    def open(self, stored: pa.Array) -> Opened:
        """Read the totals."""
        if not self.is_wide:
            kind = _OpenRetractedDoubles if self._retracts else _OpenDoubles
            return kind(stored, averages=self._averages)
        return _OpenWideSums(stored, self._total, self.result.arrow_type, averages=self._averages)


_SPECIAL: Final = ("nans", "infinities", "negative_infinities")


def _decimal() -> Any:
    from decimal import Decimal

    return Decimal


def _sum_type(kind: pa.DataType, *, averages: bool) -> tuple[Any, pa.DataType]:
    """Return the type of a sum or an average, in Python and as a column. They are those of Spark."""
    if pa.types.is_decimal(kind):
        if averages:
            more = min(4, 38 - kind.precision)
            return _decimal(), pa.decimal128(kind.precision + more, kind.scale + more)
        return _decimal(), pa.decimal128(min(38, kind.precision + 10), kind.scale)
    if averages or pa.types.is_floating(kind):
        return float, pa.float64()
    return int, pa.int64()


class _OpenDoubles:
    def __init__(self, stored: pa.Array, *, averages: bool) -> None:
        self._averages: Final = averages
        self._counts: Final = _integers(stored, "count")
        self._totals: Final[Floats] = _fill(stored, "total", 0.0)

    def add(self, given: Given) -> None:
        self._counts[:] += np.bincount(given.places, minlength=len(self._counts))
        with np.errstate(invalid="ignore", over="ignore"):
            np.add.at(self._totals, given.places, _doubles(given))

    def results(self) -> pa.Array:
        totals = self._sums()
        if self._averages:
            totals = totals / np.maximum(self._counts, 1)
        is_empty = self._counts <= 0
        return pa.array(np.where(is_empty, 0.0, totals), mask=is_empty)

    def _sums(self) -> Floats:
        return self._totals

    def beyond(self) -> Mask | None:
        return None

    def to_arrow(self, holds: Mask) -> pa.Array:
        columns = self._columns()
        return _struct(list(columns), [pa.array(column) for column in columns.values()], holds)

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {"count": self._counts, "total": self._totals}


class _OpenRetractedDoubles(_OpenDoubles):
    def __init__(self, stored: pa.Array, *, averages: bool) -> None:
        super().__init__(stored, averages=averages)
        self._special: Final = {name: _integers(stored, name) for name in _SPECIAL}

    def add(self, given: Given) -> None:
        values, signs = _doubles(given), given.signs
        assert signs is not None
        np.add.at(self._counts, given.places, signs)
        finite = np.isfinite(values)
        if not finite.all():
            kinds = (np.isnan(values), values == np.inf, values == -np.inf)
            for name, mask in zip(_SPECIAL, kinds, strict=True):
                np.add.at(self._special[name], given.places[mask], signs[mask])
            values = np.where(finite, values, 0.0)
        np.add.at(self._totals, given.places, values * signs)
        # The rounding error left behind after all values were taken away.
        self._totals[self._counts <= 0] = 0.0

    def _sums(self) -> Floats:
        nans, high, low = (self._special[name] > 0 for name in _SPECIAL)
        totals: Floats = np.where(high, np.inf, np.where(low, -np.inf, self._totals))
        totals[nans | (high & low)] = np.nan
        return totals

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return super()._columns() | self._special


def _doubles(given: Given) -> Floats:
    values: Floats = given.values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


class _OpenWideSums:
    def __init__(self, stored: pa.Array, total: pa.DataType, result: pa.DataType, *, averages: bool) -> None:
        self._averages: Final = averages
        self._total: Final = total
        self._result: Final = result
        self._counts: Final = _integers(stored, "count")
        self._sums: Final = WideSums.of(pc.struct_field(stored, "total"))

    def add(self, given: Given) -> None:
        signs = np.ones(len(given.places), np.int64) if given.signs is None else given.signs
        np.add.at(self._counts, given.places, signs)
        self._sums.add(given.places, given.values, given.signs)
        if given.signs is not None:
            self._sums.clear(self._counts <= 0)

    def results(self) -> pa.Array:
        is_empty = self._counts <= 0
        if pa.types.is_decimal(self._result):
            return self._decimals(is_empty)
        values, beyond = self._sums.integers()
        if not self._averages:
            return pa.array(np.where(is_empty | beyond, 0, values), mask=is_empty | beyond)
        totals = values.astype(np.float64)
        if beyond.any():
            totals[beyond] = [float(total) for total in np.array(self._sums.to_python(), object)[beyond]]
        return pa.array(np.where(is_empty, 0.0, totals / np.maximum(self._counts, 1)), mask=is_empty)

    def _decimals(self, is_empty: Mask) -> pa.Array:
        if not self._averages:
            mask = is_empty | self._sums.beyond_decimals(self._result.precision)
            found = self._sums.to_arrow(pa.decimal128(self._result.precision, self._result.scale))
            return pc.if_else(pa.array(mask), pa.scalar(None, found.type), found)
        scale = 10 ** (self._result.scale - self._total.scale)
        averages = [
            None if count <= 0 else _round(total * scale, count)
            for total, count in zip(self._sums.to_python(), self._counts.tolist(), strict=True)
        ]
        words = b"".join((average or 0).to_bytes(16, "little", signed=True) for average in averages)
        found = pa.Array.from_buffers(self._result, len(averages), [None, pa.py_buffer(words)])
        return pc.if_else(pa.array(is_empty), pa.scalar(None, self._result), found)

    def beyond(self) -> Mask | None:
        if self._averages:
            return None
        if pa.types.is_decimal(self._result):
            return (self._counts > 0) & self._sums.beyond_decimals(self._result.precision)
        return (self._counts > 0) & self._sums.integers()[1]

    def to_arrow(self, holds: Mask) -> pa.Array:
        return _struct(["count", "total"], [pa.array(self._counts), self._sums.to_arrow(self._total)], holds)


def _round(total: int, count: int) -> int:
    """Divide, rounding half away from zero."""
    quotient, rest = divmod(abs(total), count)
    quotient += 2 * rest >= count
    return quotient if total >= 0 else -quotient


class Extreme:
    """The smallest or the largest value, where values are only added."""

    def __init__(self, name: str, argument: Field, *, largest: bool) -> None:
        self.result = Field(name, argument.python_type, argument.arrow_type, nullable=True)
        self._largest: Final = largest

    def state(self) -> KeyedState:
        """Declare the state: the value."""
        return ScalarState(self.result)

    def open(self, stored: pa.Array) -> Opened:
        """Read the values."""
        return _OpenExtremes(stored, largest=self._largest)


class _OpenExtremes:
    def __init__(self, stored: pa.Array, *, largest: bool) -> None:
        self._values = stored
        self._largest: Final = largest

    def add(self, given: Given) -> None:
        if not len(given.places):
            return
        groups = len(self._values)
        both = pa.concat_arrays([self._values, given.values.cast(self._values.type)])
        places = np.concatenate([np.arange(groups), given.places])
        held = both.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(held)
        codes = order_codes(both.filter(pa.array(held)))
        best = np.full(groups, np.iinfo(np.int64).min if self._largest else np.iinfo(np.int64).max)
        (np.maximum if self._largest else np.minimum).at(best, places[rows], codes)
        found = np.full(groups, -1)
        is_best = codes == best[places[rows]]
        # The first of equals, so that a value that is held stays.
        found[places[rows][is_best][::-1]] = rows[is_best][::-1]
        self._values = both.take(pa.array(found, mask=found < 0))

    def results(self) -> pa.Array:
        return self._values

    def beyond(self) -> Mask | None:
        return None

    def to_arrow(self, holds: Mask) -> pa.Array:
        return self._values.take(pa.array(np.arange(len(holds)), mask=~holds))


class FirstValue:
    """The first or the last value where values are only added: by a field that orders them, or else by arrival."""

    def __init__(self, name: str, argument: Field, order: Field | None, *, last: bool) -> None:
        self.result = Field(name, argument.python_type, argument.arrow_type, nullable=True)
        self._order: Final = order
        self._last: Final = last

    def state(self) -> KeyedState:
        """Declare the state: the value, and the value that orders it."""
        if self._order is None:
            return ScalarState(self.result)
        order = Field("ordered_by", self._order.python_type, self._order.arrow_type, nullable=True)
        value = Field("value", self.result.python_type, self.result.arrow_type, nullable=True)
        return ValueState(type_of_fields([order, value]))

    def open(self, stored: pa.Array) -> Opened:
        """Read the values."""
        return _OpenFirsts(stored, ordered=self._order is not None, last=self._last)


class _OpenFirsts:
    def __init__(self, stored: pa.Array, *, ordered: bool, last: bool) -> None:
        self._stored = stored
        self._ordered: Final = ordered
        self._last: Final = last

    def add(self, given: Given) -> None:
        if not len(given.places):
            return
        kind = self._stored.type
        new = given.values
        if given.orders is not None:
            columns = [given.orders.cast(kind.field(0).type), new.cast(kind.field(1).type)]
            new = pa.StructArray.from_arrays(columns, fields=list(kind))
        both = pa.concat_arrays([self._stored, new.cast(kind)])
        places = np.concatenate([np.arange(len(self._stored)), given.places])
        rows = np.flatnonzero(both.is_valid().to_numpy(zero_copy_only=False))
        codes = [places[rows]]
        if self._ordered:
            held = both.take(pa.array(rows))
            codes += [order_codes(pc.struct_field(held, name)) for name in ("ordered_by", "value")]
        order, starts = groups_of_codes(codes[0]) if not self._ordered else _sort_groups(codes)
        ends = np.append(starts[1:], len(order)) - 1
        picked = rows[order[ends if self._last else starts]]
        found = np.full(len(self._stored), -1)
        found[places[picked]] = picked
        self._stored = both.take(pa.array(found, mask=found < 0))

    def results(self) -> pa.Array:
        return pc.struct_field(self._stored, "value") if self._ordered else self._stored

    def beyond(self) -> Mask | None:
        return None

    def to_arrow(self, holds: Mask) -> pa.Array:
        return self._stored.take(pa.array(np.arange(len(holds)), mask=~holds))


def _sort_groups(codes: list[Ints]) -> tuple[Ints, Ints]:
    """Return the order by all codes, and where each group of equal first codes starts."""
    order = np.lexsort(codes[::-1])
    places = codes[0][order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = places[1:] != places[:-1]
    return order, np.flatnonzero(is_first)


class EstimatedDistinct:
    """The estimated number of different values, where values are only added: the sketches of windows."""

    def __init__(self, name: str, argument: Field, accuracy: float) -> None:
        self.result = Field(name, int, pa.int64(), nullable=False)
        self._count: Final = DistinctCount(argument.name, accuracy)

    def state(self) -> KeyedState:
        """Declare the state: a sketch."""
        return ValueState(Sketch)

    def open(self, stored: pa.Array) -> Opened:
        """Read the sketches."""
        return _OpenSketches(self._count, stored)


class _OpenSketches:
    def __init__(self, count: DistinctCount, stored: pa.Array) -> None:
        self._count: Final = count
        self._kind: Final = stored.type
        self._held: SketchColumns = SketchColumns.of(stored)

    def add(self, given: Given) -> None:
        batch = pa.RecordBatch.from_arrays([given.values], names=[str(self._count.field)])
        found = self._count.values([batch])
        assert found is not None
        self._held = self._count.add_all(self._held, given.places, found[1])

    def results(self) -> pa.Array:
        return self._count.results(self._held)[0]

    def beyond(self) -> Mask | None:
        return None

    def to_arrow(self, holds: Mask) -> pa.Array:
        return self._held.to_arrow(self._kind, holds)


def _fill(stored: pa.Array, name: str, value: float) -> npt.NDArray[Any]:
    found = pc.struct_field(stored, name).fill_null(value).to_numpy(zero_copy_only=False)
    return np.array(found)


def _integers(stored: pa.Array, name: str) -> Ints:
    return _fill(stored, name, 0).astype(np.int64)


def _struct(names: list[str], columns: list[pa.Array], holds: Mask) -> pa.Array:
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(~holds))
