"""Record aggregates: several aggregates of fields in each window at once, with the types and nulls of SQL."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.folded_states import AggregateFunction, AggregatingState
from penstock.windows.column_aggregates import ColumnAggregate, mask_empty
from penstock.windows.distinct_values import DistinctValues, decimal_mean

__all__ = ["KINDS", "AggregateColumn", "ColumnRecordAggregates", "RecordAggregates", "record_aggregates"]

KINDS: Final = ("count", "sum", "avg", "min", "max")

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LARGEST: Final = 2**63 - 1
_TOTALS: Final = ("sum", "avg")


@dataclass(frozen=True)
class AggregateColumn:
    """One aggregate: its kind, the field that it is over (None: the records themselves), and the field it makes.

    With `function`, that function computes it: the user's, or one of different values.
    """

    kind: str
    field: str | None
    made: Field
    function: AggregateFunction[Any, Any, Any] | None = None


@dataclass(frozen=True)
class _Held:
    """The aggregates of one field: the number of values, and more. `total` and `bounds` are their Python types."""

    field: str
    total: type | None
    bounds: type | None

    @property
    def has_numbers(self) -> bool:
        """Whether more than the number of values is kept."""
        return self.total is not None or self.bounds is not None


class RecordAggregates(AggregateFunction[Any, Any, Any]):
    """Aggregates of the fields of records. Nulls are left out; without values a sum, mean or bound is null.

    The accumulator has the number of records, and for each field the number of its values and what their aggregates
    need: `room_count`, `celsius_total`, `celsius_low`, `celsius_high`.
    """

    def __init__(self, columns: Sequence[AggregateColumn], held: Sequence[_Held], kind: type) -> None:
        self.columns: Final = tuple(columns)
        self.output: Final = type_of_fields([column.made for column in columns])
        self._held: Final = tuple(held)
        self._kind: Final = kind
        self._users: Final = [(_name(n, c), c) for n, c in enumerate(columns) if c.function is not None]

    def create_accumulator(self) -> Any:
        """Return the accumulator of no records."""
        return self._kind(**{name: _function(c).create_accumulator() for name, c in self._users})

    def add(self, record: Any, held: Any) -> Any:
        """Add a record. Raises OverflowError if a sum of integers leaves BIGINT."""
        for one in self._held:
            value = getattr(record, one.field)
            if value is not None:
                self._add_value(held, one, value)
        for name, column in self._users:
            value = getattr(record, str(column.field))
            if value is not None:
                setattr(held, name, _function(column).add(value, getattr(held, name)))
        held.records += 1
        return held

    def _add_value(self, held: Any, one: _Held, value: Any) -> None:
        name = one.field
        setattr(held, f"{name}_count", getattr(held, f"{name}_count") + 1)
        if one.total is not None:
            _set_total(held, one, getattr(held, f"{name}_total") + one.total(value))
        if one.bounds is not None:
            self._add_bounds(held, one, value, value)

    def _add_bounds(self, held: Any, one: _Held, least: Any, largest: Any) -> None:
        low, high = getattr(held, f"{one.field}_low"), getattr(held, f"{one.field}_high")
        if low is None or _is_less(least, low):
            setattr(held, f"{one.field}_low", least)
        if high is None or _is_less(high, largest):
            setattr(held, f"{one.field}_high", largest)

    def get_result(self, held: Any) -> Any:
        """Return the record of all results."""
        return self.output.python_class(*(self._result(n, c, held) for n, c in enumerate(self.columns)))

    def _result(self, number: int, column: AggregateColumn, held: Any) -> Any:
        if column.function is not None:
            return column.function.get_result(getattr(held, _name(number, column)))
        if column.field is None:
            return held.records
        count = getattr(held, f"{column.field}_count")
        if column.kind == "count":
            return count
        if not count:
            return None
        if column.kind in _TOTALS:
            total = getattr(held, f"{column.field}_total")
            if column.kind == "avg" and pa.types.is_decimal(column.made.arrow_type):
                return decimal_mean(total, count, column.made.arrow_type.scale)
            return total if column.kind == "sum" else float(total) / count
        return getattr(held, f"{column.field}_{'low' if column.kind == 'min' else 'high'}")

    def merge(self, a: Any, b: Any) -> Any:
        """Merge the contents of two windows, those of `a` before those of `b`."""
        a.records += b.records
        for one in self._held:
            name = f"{one.field}_count"
            setattr(a, name, getattr(a, name) + getattr(b, name))
            if one.total is not None:
                _set_total(a, one, getattr(a, f"{one.field}_total") + getattr(b, f"{one.field}_total"))
            if one.bounds is not None:
                low, high = (getattr(b, f"{one.field}_{bound}") for bound in ("low", "high"))
                if low is not None:
                    self._add_bounds(a, one, low, high)
        for name, column in self._users:
            setattr(a, name, _function(column).merge(getattr(a, name), getattr(b, name)))
        return a


def _is_less(value: Any, other: Any) -> bool:
    # NaN is not equal to itself, and larger than all others.
    return bool(value < other or (other != other and value == value))


def _set_total(held: Any, one: _Held, total: Any) -> None:
    if one.total is int and abs(total) > _LARGEST:
        raise OverflowError(f"the sum of {one.field!r} is beyond BIGINT; CAST it to DOUBLE or DECIMAL")
    setattr(held, f"{one.field}_total", total)


def _name(number: int, column: AggregateColumn) -> str:
    return f"{'distinct' if isinstance(column.function, DistinctValues) else 'user'}_{number}"


def _function(column: AggregateColumn) -> AggregateFunction[Any, Any, Any]:
    assert column.function is not None
    return column.function


class TotalsByField:
    """The accumulators of many windows, as columns by the names of their stored fields.

    Without values, a low is the largest number and a high the smallest.
    """

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self.columns: Final = dict(columns)

    @classmethod
    def of(cls, stored: pa.Array) -> Self:
        """Read stored accumulators."""
        found = {}
        for field in stored.type:
            numbers = pc.struct_field(stored, field.name)
            if not pa.types.is_floating(field.type):
                numbers = _as_integers(numbers)
            none = _none_of(field.name, floats=pa.types.is_floating(field.type))
            found[field.name] = numbers.fill_null(none).to_numpy(zero_copy_only=False)
        return cls(found)

    def take(self, rows: Ints) -> Self:
        """Return the accumulators of some rows; NEW, which is -1, is one of no records."""
        return type(self)(
            {
                name: np.append(column, column.dtype.type(_none_of(name, floats=column.dtype.kind == "f")))[
                    rows
                ]
                for name, column in self.columns.items()
            }
        )

    def to_arrow(self, kind: pa.DataType, holds: Mask) -> pa.Array:
        """Return the stored form, with a null for each window that `holds` no records."""
        columns = []
        for field in kind:
            numbers = self.columns[field.name]
            name, _, part = field.name.rpartition("_")
            if part in ("low", "high"):
                found = mask_empty(numbers, self.columns[f"{name}_count"] == 0)
                columns.append(_as_times(found, field.type))
            else:
                columns.append(pa.array(numbers).cast(field.type))
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array(~holds))


def _none_of(name: str, *, floats: bool) -> Any:
    part = name.rpartition("_")[2]
    if part not in ("low", "high"):
        return 0.0 if floats else 0
    if floats:
        return np.inf if part == "low" else -np.inf
    return _LARGEST if part == "low" else -_LARGEST - 1


class ColumnRecordAggregates(RecordAggregates, ColumnAggregate[Any, Any]):
    """Aggregates of fields of numbers and times, computed on columns."""

    held = TotalsByField
    field = None

    def values(self, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, npt.NDArray[Any]] | None:
        """Return all fields as one structured array; None if any number is NaN."""
        rows = sum(batch.num_rows for batch in batches)
        kinds = [(one.field, "f8" if _is_float(one) else "i8") for one in self._held if one.has_numbers]
        kinds += [(f"{one.field}_there", "?") for one in self._held]
        values = np.zeros(rows, kinds)
        for one in self._held:
            column = pa.concat_arrays([batch.column(one.field) for batch in batches])
            values[f"{one.field}_there"] = column.is_valid().to_numpy(zero_copy_only=False)
            if not one.has_numbers:
                continue
            if _is_float(one):
                numbers = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
                if np.isnan(numbers).any():
                    return None
            else:
                numbers = _as_integers(column).fill_null(0).to_numpy()
            values[one.field] = numbers
        return np.ones(rows, bool), values

    def add_all(self, held: TotalsByField, places: Ints, values: npt.NDArray[Any]) -> TotalsByField | None:
        """Add values in the order of the records; None if a sum may leave BIGINT."""
        columns = held.columns
        columns["records"] += np.bincount(places, minlength=len(columns["records"]))
        for one in self._held:
            there = values[f"{one.field}_there"]
            all_there = bool(there.all())
            at = places if all_there else places[there]
            columns[f"{one.field}_count"] += np.bincount(at, minlength=len(columns["records"]))
            if not one.has_numbers:
                continue
            numbers = np.ascontiguousarray(values[one.field]) if all_there else values[one.field][there]
            if one.total is not None:
                totals = columns[f"{one.field}_total"]
                if one.total is int and not _fits(totals, at, numbers):
                    return None
                np.add.at(totals, at, numbers)
            if one.bounds is not None:
                np.fmin.at(columns[f"{one.field}_low"], at, numbers)
                np.maximum.at(columns[f"{one.field}_high"], at, numbers)
        return held

    def results(self, held: TotalsByField) -> list[pa.Array]:
        """Return the results as columns."""
        return [self._column(column, held.columns) for column in self.columns]

    def _column(self, column: AggregateColumn, held: Mapping[str, npt.NDArray[Any]]) -> pa.Array:
        if column.field is None:
            return pa.array(held["records"])
        counts = held[f"{column.field}_count"]
        if column.kind == "count":
            return pa.array(counts)
        if column.kind == "sum":
            return mask_empty(held[f"{column.field}_total"], counts == 0)
        if column.kind == "avg":
            totals = held[f"{column.field}_total"]
            # Divided like Python does it, record by record.
            means = totals.astype(np.float64) / np.maximum(counts, 1).astype(np.float64)
            return mask_empty(means, counts == 0)
        found = held[f"{column.field}_{'low' if column.kind == 'min' else 'high'}"]
        return _as_times(mask_empty(found, counts == 0), column.made.arrow_type)


def _as_integers(column: pa.Array) -> pa.Array:
    """Return integers, dates or timestamps as integers."""
    return (column.cast(pa.int32()) if pa.types.is_date32(column.type) else column).cast(pa.int64())


def _as_times(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return numbers as a type; integers may become dates or timestamps."""
    return (numbers.cast(pa.int32()) if pa.types.is_date32(kind) else numbers).cast(kind)


def _is_float(one: _Held) -> bool:
    return float in (one.total, one.bounds)


def _fits(totals: Ints, places: Ints, numbers: Ints) -> bool:
    """Return whether sums of integers surely stay within BIGINT."""
    sums = np.abs(totals.astype(np.float64))
    np.add.at(sums, places, np.abs(numbers.astype(np.float64)))
    return not len(sums) or float(sums.max()) < 2.0**62


def record_aggregates(columns: Sequence[AggregateColumn], records: RecordType) -> RecordAggregates:
    """Return the aggregate function of some aggregates over records of a type."""
    totals: dict[str, type] = {}
    bounds: dict[str, type] = {}
    fields: dict[str, None] = {}
    for column in columns:
        if column.field is None or column.function is not None:
            continue
        fields[column.field] = None
        found = records.field(column.field)
        python = found.python_type
        if column.kind in _TOTALS:
            is_whole, is_decimal = (
                pa.types.is_integer(found.arrow_type),
                pa.types.is_decimal(found.arrow_type),
            )
            totals[column.field] = int if is_whole else decimal.Decimal if is_decimal else float
        elif column.kind in ("min", "max"):
            bounds[column.field] = python
    held = [_Held(name, totals.get(name), bounds.get(name)) for name in fields]
    parts: list[tuple[str, Any, Any]] = [("records", int, 0)]
    for one in held:
        parts.append((f"{one.field}_count", int, 0))
        if one.total is not None:
            parts.append((f"{one.field}_total", one.total, one.total(0)))
        if one.bounds is not None:
            parts += [
                (f"{one.field}_low", one.bounds | None, None),
                (f"{one.field}_high", one.bounds | None, None),
            ]
    parts += [
        (_name(number, column), AggregatingState(column.function).accumulator_type, None)
        for number, column in enumerate(columns)
        if column.function is not None
    ]
    kind = dataclasses.make_dataclass("Totals", parts)
    in_columns = all(column.function is None for column in columns) and all(
        one.total in (None, int, float) and one.bounds in (None, int, float, dt.date, dt.datetime)
        for one in held
    )
    base = ColumnRecordAggregates if in_columns else RecordAggregates
    # The type of accumulators is an annotation, as with functions of users.
    made = type("Aggregates", (base,), {"create_accumulator": _annotated(kind)})
    function: RecordAggregates = made(columns, held, kind)
    return function


def _annotated(kind: type) -> Any:
    def create_accumulator(self: RecordAggregates) -> Any:
        return RecordAggregates.create_accumulator(self)

    create_accumulator.__annotations__["return"] = kind
    return create_accumulator
