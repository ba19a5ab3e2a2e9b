"""JSON structs: flat JSON schemas as types, so that one pass over many messages decodes and validates all of them.

A message that such a type accepts is valid, and is the record that other ways find. One that it does not accept may be
valid all the same, so another decoder has the last word.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import inspect

from penstock.errors import SchemaError
from penstock.records.types import Field, RecordType
from penstock.registries.field_defaults import NO_DEFAULT, default_of
from penstock.registries.framed_messages import HEADER, offsets_of

__all__ = ["JsonStructs", "structs_of"]

_TYPES: Final[dict[str, type]] = {"string": str, "integer": int, "number": float, "boolean": bool}
# What does not change which values are valid.
_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "readOnly", "writeOnly", "deprecated", "$comment"}
)
_DRAFTS: Final = ("draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
_BOUNDS: Final = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_LENGTHS: Final = {"minLength": "min_length", "maxLength": "max_length"}
# Below this each integer is a float, so values are compared alike whichever of the two they are; a length fits, too.
_EXACT: Final = 2**53
_OPEN, _CLOSE, _LINE_END, _SPACE = b"{}\n "


class JsonStructs:
    """A decoder of messages with headers by a type that has the fields of a schema and of the record."""

    def __init__(self, record_type: RecordType, kind: type, defaults: Mapping[str, Any]) -> None:
        self._type: Final = record_type
        self._decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(kind)
        self._defaults: Final = defaults

    def decode(self, raw: pa.Array) -> pa.RecordBatch | None:
        """Return the records of messages; None unless this decoder accepts all of them."""
        lines = _lines(raw)
        if lines is None:
            return None
        try:
            objects = self._decoder.decode_lines(lines)
            if len(objects) != len(raw):
                return None
            columns = [self._column(field, place, objects) for place, field in enumerate(self._type.fields)]
        except (ValueError, RecursionError, SchemaError, pa.ArrowException):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._type.schema)

    def _column(self, field: Field, place: int, objects: Sequence[Any]) -> pa.Array:
        if field.name in self._defaults:
            values = [self._defaults[field.name]] * len(objects)
        else:
            values = list(map(operator.attrgetter(f"f{place}"), objects))
        return field.to_arrow(values, check=False)


def _lines(raw: pa.Array) -> Any:
    """Return messages as lines, each header being white space; None unless each begins and ends with a brace.

    No JSON value has a `}` and a `{` with nothing but white space between them, so each message is a whole number of
    values.
    """
    offsets = offsets_of(raw).astype(np.int64)
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    if (ends < starts + HEADER.size + 2).any():
        return None
    data = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
    if (data[starts + HEADER.size] != _OPEN).any() or (data[ends - 1] != _CLOSE).any():
        return None
    data[starts] = _LINE_END
    for byte in range(1, HEADER.size):
        data[starts + byte] = _SPACE
    return memoryview(data[1:])  # type: ignore[arg-type]  # an array is a buffer


def structs_of(record_type: RecordType, schema: Any) -> JsonStructs | None:
    """Return a decoder by a schema; None if the schema or the record has more than plain values in its fields."""
    plain = _plain_fields(record_type)
    if plain is None or not isinstance(schema, dict) or not _is_object(schema):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    is_open = schema.get("additionalProperties", True)
    specs: list[Any] = []
    names: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    others = [name for name in dict.fromkeys([*properties, *required]) if name not in plain]
    for place, name in enumerate([*plain, *others]):
        field = plain.get(name)
        default = default_of(record_type, name) if field else None
        if name not in properties and not is_open:
            if default is NO_DEFAULT or name in required:
                return None
            defaults[name] = default
            continue
        kind = _kind(properties.get(name, True), field)
        if kind is None:
            return None
        names[f"f{place}"] = name
        is_required = name in required or default is NO_DEFAULT
        specs.append((f"f{place}", kind) if is_required else (f"f{place}", kind, default))
    # Fields that neither has are decoded, not skipped, by the other decoder.
    try:
        struct = msgspec.defstruct("Message", specs, rename=names, kw_only=True, forbid_unknown_fields=True)
    except ValueError:
        # msgspec has no fields with quotation marks, backslashes and control characters in their names.
        return None
    return JsonStructs(record_type, struct, defaults)


def _is_object(schema: dict[str, Any]) -> bool:
    draft = schema.get("$schema")
    known = _NOTES | {"$schema", "$id", "type", "properties", "required", "additionalProperties"}
    return (
        schema.get("type") == "object"
        and all(name in known for name in schema)
        and schema.get("additionalProperties", True) in (True, False)
        and (draft is None or (isinstance(draft, str) and any(name in draft for name in _DRAFTS)))
    )


def _plain_fields(record_type: RecordType) -> dict[str, Field] | None:
    """Return the fields by their names; None if the class of the records checks or renames anything itself."""
    kind = record_type.python_class
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType | inspect.DataclassType) or hasattr(kind, "__post_init__"):
        return None
    if isinstance(info, inspect.StructType) and (info.forbid_unknown_fields or info.tag or info.array_like):
        return None
    found = {field.name: field for field in info.fields}
    for field in record_type.fields:
        if field.python_type not in _TYPES.values() or field.name not in found:
            return None
        expected = field.python_type | None if field.nullable else field.python_type
        there = found[field.name]
        if there.encode_name != field.name or there.type != inspect.type_info(expected):
            return None
    return {field.name: field for field in record_type.fields}


def _kind(schema: Any, field: Field | None) -> Any:
    """Return the type of values that a schema and a field of the record both accept; None if there is no such type."""
    wanted: Any = None if field is None else field.python_type
    may_be_null = field is None or field.nullable
    if schema is True:
        return Any if field is None else (wanted | None if may_be_null else wanted)
    if not isinstance(schema, dict):
        return None
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list):
        return None
    kinds = [_TYPES.get(name) for name in types if name != "null"]
    if len(kinds) != 1 or kinds[0] is None:
        return None
    base = kinds[0]
    if wanted not in (None, base):
        if {base, wanted} != {int, float}:
            return None
        # The narrower of the two is right for both.
        base = int
    narrowed = _narrowed(base, schema)
    if narrowed is None:
        return None
    # Members of an enumeration are texts here, so null is none of them.
    return narrowed | None if may_be_null and "null" in types and "enum" not in schema else narrowed


def _narrowed(base: Any, schema: dict[str, Any]) -> Any:
    """Return a type with the limits of a schema; None if there are others than this knows."""
    limits: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NOTES or name == "type":
            continue
        if name == "enum" and base is str and value and all(isinstance(one, str) for one in value):
            limits["enum"] = value
        elif base in (int, float) and name in _BOUNDS and _is_exact(value, base):
            limits[_BOUNDS[name]] = base(value)
        elif base is str and name in _LENGTHS and type(value) is int and 0 <= value < _EXACT:
            limits[_LENGTHS[name]] = value
        else:
            return None
    if "enum" in limits:
        return Literal[tuple(limits["enum"])] if len(limits) == 1 else None
    if {"ge", "gt"} <= limits.keys() or {"le", "lt"} <= limits.keys():
        return None
    return Annotated[base, msgspec.Meta(**limits)] if limits else base


def _is_exact(value: Any, base: type) -> bool:
    return type(value) in (int, float) and abs(value) < _EXACT and base(value) == value
