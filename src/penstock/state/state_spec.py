"""State specs: the name of a declared state, the type of its values, and how they are stored."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.schemas import arrow_type_of, record_type
from penstock.records.types import Field, RecordType
from penstock.state.ttl import Ttl

__all__ = ["StateSpec", "fill_defaults", "fit_value", "json_decoder", "record_struct", "value_spec"]


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """A declared state: its name and earlier name, the type of its values, their stored type and their TTL."""

    name: str
    python_type: Any
    arrow_type: pa.DataType
    record_type: RecordType | None
    ttl: Ttl | None = None
    renamed_from: str | None = None

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Convert values to the stored form; None becomes null. Raises SchemaError if one cannot be stored."""
        kind = self.record_type
        if kind is None:
            return self._field.to_arrow(values)
        present = [value for value in values if value is not None]
        packed = pa.StructArray.from_arrays(kind.batch(present).columns, fields=list(self.arrow_type))
        if len(present) == len(values):
            return packed
        places = np.cumsum([value is not None for value in values]) - 1
        return packed.take(pa.array(places, mask=np.array([value is None for value in values])))

    def to_python(self, stored: pa.Array) -> list[Any]:
        """Convert stored values to those that user code sees."""
        kind = self.record_type
        if kind is None:
            return self._field.to_python(stored)
        if not stored.null_count:
            return kind.objects(_unpack(stored, kind))
        found = iter(kind.objects(_unpack(pc.drop_null(stored), kind)))
        return [next(found) if ok else None for ok in stored.is_valid().to_pylist()]

    @functools.cached_property
    def _field(self) -> Field:
        return Field(self.name, self.python_type, self.arrow_type, nullable=True)


def _unpack(stored: pa.Array, record_type: RecordType) -> pa.RecordBatch:
    """Return a struct column without nulls as a record batch."""
    return pa.RecordBatch.from_arrays(stored.flatten(), names=list(record_type.field_names))


def fit_value(value: Any, spec: StateSpec) -> Any:
    """Convert a value to the declared type. Raises TypeError if it does not fit."""
    if isinstance(value, enum.Enum) and type(value) is spec.python_type:
        # msgspec accepts members of text enumerations only.
        return value
    try:
        return msgspec.convert(value, spec.python_type, from_attributes=spec.record_type is not None)
    except msgspec.ValidationError as e:
        raise TypeError(f"the state {spec.name!r} was set to {value!r}: {e}") from None


@functools.lru_cache(maxsize=1024)
def _dataclass_fields(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass, and none for other types. Cached, since it is slow for enumerations."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def fill_defaults(value: Any) -> Any:
    """Set the fields of dataclasses that a value from JSON left at their defaults, and return the value.

    msgspec leaves these to the class attributes, and then omits them when it encodes the value again.
    """
    kind: Any = type(value)
    names = _dataclass_fields(kind)
    if names:
        for name in names:
            found = fill_defaults(getattr(value, name))
            if name not in getattr(value, "__dict__", {name: found}):
                object.__setattr__(value, name, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            fill_defaults(item)
    elif isinstance(value, dict):
        for item in value.values():
            fill_defaults(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            fill_defaults(getattr(value, name))
    return value


def value_spec(name: str, value_type: Any, ttl: Ttl | None = None) -> StateSpec:
    """Return how values of a type are stored under a name. Raises SchemaError if they cannot be stored."""
    try:
        arrow = arrow_type_of(value_type)
    except SchemaError as e:
        try:
            kind = record_type(value_type)
        except SchemaError:
            shown = getattr(value_type, "__name__", repr(value_type))
            raise SchemaError(
                f"{shown} is not a type of values that can be kept ({e}). Give int, float, str, bool, bytes, a date or "
                "time, list[...] of these, or a dataclass."
            ) from None
        return StateSpec(name, kind.python_class, record_struct(kind), kind, ttl)
    if pa.types.is_struct(arrow):
        kind = record_type(value_type)
        return StateSpec(name, value_type, record_struct(kind), kind, ttl)
    return StateSpec(name, value_type, arrow, None, ttl)


@functools.lru_cache(maxsize=1024)
def json_decoder(value_type: Any) -> msgspec.json.Decoder[Any]:
    """Return the JSON decoder of values of a type, or null."""
    return msgspec.json.Decoder(value_spec("", value_type).python_type | None)


def record_struct(kind: RecordType) -> pa.StructType:
    """Return the struct type of a stored record; its fields are nullable, since a key may have no record."""
    return pa.struct([pa.field(f.name, f.type, nullable=True) for f in kind.schema])
