"""Record types: one description of a record for Python objects, Arrow columns and state.

A `RecordType` turns lists of objects into Arrow record batches and back, in bulk. `penstock.records.schemas` builds one
from a user's schema.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import operator
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.exact_values import check_exact
from penstock.records.nested_values import Completion, find_unreadable_rows, make_completion, to_builtins
from penstock.records.small_columns import FEW, column_of
from penstock.records.year_bounds import BEYOND, beyond_years

__all__ = [
    "SCALARS",
    "BadRecord",
    "CustomColumnCodec",
    "Field",
    "RecordType",
    "concat_batches",
    "empty_like",
    "python_values",
    "rows_where",
    "struct_class",
    "type_of_fields",
]

SCALARS: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),
}


@dataclasses.dataclass(frozen=True)
class BadRecord:
    """A record that could not be read: why, where it is in its source, and its bytes."""

    reason: str
    partition: str
    offset: int
    raw: bytes


class CustomColumnCodec:
    """A value type that does its own conversion to and from columns."""

    def parts(self) -> dict[str, Any]:
        """Return how the values inside each value are stored, by the name of their role."""
        raise NotImplementedError

    def to_python(self, column: pa.Array) -> list[Any]:
        """Return the values of a column; None for a null."""
        raise NotImplementedError

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return the column of some values. May raise anything when one does not fit."""
        raise NotImplementedError


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as plain Python values, maps as dicts."""
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if len(column) > FEW and column.null_count == 0 and is_number:
        # NumPy's tolist is several times faster than Arrow's, and exact for these types.
        return typing.cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
    # By default Arrow returns maps as lists of pairs. Without maps that default is much faster.
    as_dicts: Any = {"maps_as_pydicts": "lossy"} if pa.types.is_nested(column.type) else {}
    return typing.cast("list[Any]", column.to_pylist(**as_dicts))


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a record.

    `python_type` is what user code sees, `arrow_type` how the value is sent and stored. A field that is not `nullable`
    must have a value in every record.
    """

    name: str
    python_type: Any
    arrow_type: pa.DataType
    nullable: bool

    @functools.cached_property
    def enum(self) -> type[enum.Enum] | None:
        """The enumeration whose members this field holds, or None."""
        if isinstance(self.python_type, type) and issubclass(self.python_type, enum.Enum):
            return self.python_type
        return None

    @functools.cached_property
    def members(self) -> frozenset[Any] | None:
        """The values that this field may hold when its type lists them, or None."""
        if self.enum is not None:
            return frozenset(member.value for member in self.enum)
        if typing.get_origin(self.python_type) is typing.Literal:
            return frozenset(typing.get_args(self.python_type))
        return None

    @functools.cached_property
    def plain(self) -> bool:
        """Whether Arrow's own conversion returns exactly the Python values that user code expects."""
        return self.enum is None and not pa.types.is_nested(self.arrow_type)

    def to_python(self, column: pa.Array) -> list[Any]:
        """Return the values of a column as user code sees them."""
        if isinstance(self.python_type, CustomColumnCodec):
            return self.python_type.to_python(column)
        values = python_values(column)
        if self.plain:
            return values
        if self.enum is not None:
            members = {value: None if value is None else self.enum(value) for value in set(values)}
            return [members[value] for value in values]
        target = self.python_type | None if self.nullable else self.python_type
        return [msgspec.convert(value, target) for value in values]

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any], *, check: bool = True) -> pa.Array:
        """Return the column of a list of values. Raises SchemaError naming the field when one does not fit.

        Without `check` a missing value passes, for callers that check for missing values themselves.
        """
        try:
            if isinstance(self.python_type, CustomColumnCodec):
                return self.python_type.to_arrow(values)
            if self.enum is not None:
                values = _enum_values(values)
            elif pa.types.is_nested(self.arrow_type):
                values = to_builtins(values)
                if self._complete is not None:
                    for value in values:
                        self._complete(value, False)
                # Arrow accepts any value of the right shape; reject one that cannot be converted back for user code.
                msgspec.convert(values, self._checked_list)
            column = column_of(values, self.arrow_type)
            check_exact(values, column)
            if self.members is not None and not self.members.issuperset(values):
                self._check_members(values)
            if beyond_years(column) is not None:
                raise ValueError(f"it lies {BEYOND}")
        except Exception as e:  # values come from user code, and may raise anything on access
            raise SchemaError(f"field {self.name!r} ({self.arrow_type}) cannot hold a value: {e}") from e
        if check and not self.nullable and column.null_count:
            raise SchemaError(f"field {self.name!r} has no value and is not optional")
        return column

    @functools.cached_property
    def _complete(self) -> Completion | None:
        return make_completion(self.python_type)

    def complete(self, values: Iterable[Any]) -> None:
        """Give records within values, which are dictionaries of others, the names and defaults of their classes.

        It changes them in place.
        """
        if self._complete is not None:
            for value in values:
                self._complete(value, True)

    @functools.cached_property
    def _checked_list(self) -> Any:
        return list[self.python_type | None]  # type: ignore[name-defined]  # the type is made at run time

    def check(self, column: pa.Array) -> None:
        """Raise SchemaError when a column lacks a required value, or holds one that is not allowed."""
        if not self.nullable and column.null_count:
            raise SchemaError(f"field {self.name!r} has no value and is not optional")
        if self.members is not None:
            try:
                self._check_members(pc.unique(column).to_pylist())
            except ValueError as e:
                raise SchemaError(f"field {self.name!r} cannot hold a value: {e}") from None
        if beyond_years(column) is not None:
            raise SchemaError(f"field {self.name!r} cannot hold a value: it lies {BEYOND}")

    def _check_members(self, values: Iterable[Any]) -> None:
        assert self.members is not None
        for value in values:
            if value is None or value in self.members:
                continue
            if self.enum is None:
                raise ValueError(f"{value!r} is not one of {', '.join(map(repr, sorted(self.members)))}")
            # More than the members may be valid: combinations of flags, and other values that the class accepts.
            self.enum(value)


def _enum_values(values: Iterable[Any]) -> list[Any]:
    """Return the values of members; plain values stay as they are."""
    try:
        # A member's `value` and hash are written in Python, so they are slow; this attribute is not.
        return list(map(_enum_value, values))
    except AttributeError:
        return [value._value_ if isinstance(value, enum.Enum) else value for value in values]


_enum_value: Final = operator.attrgetter("_value_")


class RecordType:
    """The type of the records of one stream, as Python objects and as Arrow columns.

    `python_class` is the class that user code sees: the given dataclass or Struct, or a Struct built from the
    fields of a protobuf message or DDL string. Build a record type with `record_type`.
    """

    def __init__(
        self, name: str, fields: Sequence[Field], python_class: type, rebuild: tuple[Callable[..., Any], Any]
    ) -> None:
        self.name = name
        self.fields: Final = tuple(fields)
        self.python_class = python_class
        self.schema: Final = pa.schema([pa.field(f.name, f.arrow_type, f.nullable) for f in self.fields])
        self._by_name: Final = {f.name: f for f in self.fields}
        self._rebuild = rebuild

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        function, argument = self._rebuild
        return function, (argument,)

    def __repr__(self) -> str:
        inside = ", ".join(f"{f.name}: {f.arrow_type}" for f in self.fields)
        return f"{self.name}({inside})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordType) and self.name == other.name and self.schema == other.schema

    def __hash__(self) -> int:
        return hash(self.name)

    def difference(self, other: RecordType) -> str:
        """Describe how another type differs, for people; "" when records of both are alike."""
        if repr(self) != repr(other):
            return f"{self!r} and {other!r}"
        for mine, its in zip(self.fields, other.fields, strict=True):
            if mine.nullable != its.nullable:
                return f"the field {mine.name!r} of {self.name} may be null in only one of them"
            if mine != its:
                return (
                    f"the field {mine.name!r} of {self.name} is {mine.python_type!r} and {its.python_type!r}"
                )
        return ""

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(self._by_name)

    def field(self, name: str) -> Field:
        """Return the field of that name. Raises SchemaError, which lists the fields, when it does not exist."""
        try:
            return self._by_name[name]
        except KeyError:
            raise SchemaError(
                f"{self.name} has no field {name!r}; its fields are {', '.join(self.field_names)}."
            ) from None

    def fields_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the fields of the records of a batch, without the columns beyond them."""
        names = list(self._by_name)
        # Selecting rows costs more than checking that all of them stay.
        return batch if batch.schema.names == names else batch.select(names)

    def objects(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the records of a batch as objects of `python_class`. Columns beyond the fields are ignored."""
        columns = [f.to_python(batch.column(f.name)) for f in self.fields]
        return list(map(self.python_class, *columns))

    def batch(self, objects: Sequence[Any], *, check: bool = True) -> pa.RecordBatch:
        """Return a record batch of objects that have this type's fields as attributes.

        Raises SchemaError when an object lacks a field or a value does not fit. With `check` a missing value
        in a field that is not optional is an error too.
        """
        columns = []
        for f in self.fields:
            try:
                values = list(map(operator.attrgetter(f.name), objects))
            except Exception as e:  # objects come from user code, and may raise anything on access
                raise SchemaError(f"a record does not fit {self.name}: {e}") from None
            columns.append(f.to_arrow(values, check=check))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def missing(
        self, batch: pa.RecordBatch, *, allow_nan: bool, unchecked: bool = False
    ) -> npt.NDArray[np.str_] | None:
        """Return for each row why it is not a valid record ("" when it is), or None when all rows are valid.

        A row is invalid when a field that is not nullable is null, when a float is NaN and NaN is not allowed, or when
        a time is outside Python's range. In columns that are `unchecked`, since no Python values were in them yet, also
        when user code could not read what is nested in a field.
        """
        reasons: npt.NDArray[Any] | None = None
        for f in self.fields:
            column = batch.column(f.name)
            if not f.nullable and column.null_count:
                bad = column.is_null().to_numpy(zero_copy_only=False)
                reasons = _note(reasons, bad, f"field {f.name!r} is missing or null")
            if not allow_nan and pa.types.is_floating(f.arrow_type) and _may_have_nan(column):
                values = column.to_numpy(zero_copy_only=False)
                # A NaN makes the sum NaN, which costs one pass without a temporary. So do infinities of both signs,
                # so the slow check decides.
                with np.errstate(invalid="ignore", over="ignore"):
                    total = values.sum()
                if np.isnan(total):
                    bad = np.isnan(values) & column.is_valid().to_numpy(zero_copy_only=False)
                    if bad.any():
                        reasons = _note(reasons, bad, f"field {f.name!r} is NaN")
            beyond = beyond_years(column)
            if beyond is not None:
                bad = beyond.to_numpy(zero_copy_only=False)
                reasons = _note(reasons, bad, f"field {f.name!r} lies {BEYOND}")
            if unchecked and pa.types.is_nested(f.arrow_type):
                for row, why in find_unreadable_rows(column, f.python_type, f.to_python).items():
                    bad = np.arange(len(column)) == row
                    reasons = _note(reasons, bad, f"field {f.name!r} cannot be read: {why}")
        return reasons


def _may_have_nan(column: pa.Array) -> bool:
    """Return whether a column of floats may have a NaN, which is not equal to itself."""
    return len(column) > FEW or any(value != value for value in column.to_pylist())


def _note(reasons: npt.NDArray[Any] | None, bad: npt.NDArray[Any], reason: str) -> npt.NDArray[Any]:
    if reasons is None:
        reasons = np.full(len(bad), "", dtype=object)
    reasons[bad & (reasons == "")] = reason
    return reasons


def empty_like(schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def concat_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return all batches as one, in order."""
    found = list(batches)
    if len(found) == 1:
        return found[0]
    if not found:
        return empty_like(schema)
    return pa.concat_batches(found)


def struct_class(name: str, fields: Sequence[Field]) -> type:
    """Return a Struct with the given fields, in order; nullable fields may be left out.

    Positional construction requires that every field after one with a default has a default too. `RecordType.missing`
    finds None there like any other missing value.
    """
    specs: list[Any] = []
    defaulted = False
    for f in fields:
        defaulted = defaulted or f.nullable
        optional = f.python_type | None if f.nullable else f.python_type
        specs.append((f.name, optional, None) if defaulted else (f.name, optional))
    return msgspec.defstruct(name, specs)


def rows_where(batch: pa.RecordBatch, keep: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows of a batch whose mask is true, in order."""
    return pc.filter(batch, pa.array(keep))


def type_of_fields(fields: Sequence[Field]) -> RecordType:
    """Return a record type with these fields, whose records are plain Structs.

    Raises SchemaError when two fields have the same name.
    """
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"There are two fields named {twice!r}; rename one.")
    return RecordType("Record", fields, struct_class("Record", fields), (type_of_fields, tuple(fields)))
