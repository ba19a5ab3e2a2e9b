"""JSON schemas: of a record type, and validators of registered ones with what they refer to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import RecordType
from penstock.registries.registry_client import RegisteredSchema

__all__ = ["Validator", "schema_text", "validator_of"]

_DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
# What names of references are relative to, if the schema has no address of its own.
_BASE: Final = "penstock:///"
_SIMPLE: Final = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_string, {"type": "string"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
    (pa.types.is_timestamp, {"type": "string", "format": "date-time"}),
    (pa.types.is_date32, {"type": "string", "format": "date"}),
    (pa.types.is_decimal, {"type": "string"}),
)


def schema_text(record_type: RecordType) -> str:
    """Return the JSON Schema of a record type. Raises SchemaError when JSON cannot have one of its fields."""
    properties, required = {}, []
    for field in record_type.fields:
        kind = _type_of(field.arrow_type, field.name)
        properties[field.name] = _or_null(kind) if field.nullable else kind
        if not field.nullable:
            required.append(field.name)
    schema = {"$schema": _DRAFT_7, "title": record_type.name, **_object(properties), "required": required}
    return msgspec.json.encode(schema).decode()


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    # A registry lets the optional properties of a closed object grow; an open one may have had any others before.
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _or_null(kind: dict[str, Any]) -> dict[str, Any]:
    return {**kind, "type": [kind["type"], "null"]}


def _type_of(kind: pa.DataType, path: str) -> dict[str, Any]:
    for is_kind, found in _SIMPLE:
        if is_kind(kind):
            return found
    if pa.types.is_list(kind):
        return {"type": "array", "items": _or_null(_type_of(kind.value_type, f"{path}[]"))}
    if pa.types.is_map(kind):
        return {
            "type": "object",
            "additionalProperties": _or_null(_type_of(kind.item_type, f"{path}.*")),
        }
    if pa.types.is_struct(kind):
        return _object({field.name: _or_null(_type_of(field.type, f"{path}.{field.name}")) for field in kind})
    raise SchemaError(f"The field {path!r} is of type {kind}, which JSON Schema does not have.")


class Validator(NamedTuple):
    """A validator of values, what says at once whether each of a list is valid, if there is such, and the schema."""

    one: Any
    all_valid: Callable[[list[Any]], bool] | None
    schema: Any


def _all_valid(draft: Any, schema: Any, text: str) -> Callable[[list[Any]], bool] | None:
    """Return what validates lists, in nearly half the time; None for schemas with references, which would be others."""
    if not isinstance(schema, dict):
        return None
    inner = {name: value for name, value in schema.items() if name != "$schema"}
    if '"$' in text.replace('"$schema"', "", 1):
        return None
    is_valid: Callable[[list[Any]], bool] = draft({"type": "array", "items": inner}).is_valid
    return is_valid


def validator_of(found: RegisteredSchema) -> Validator:
    """Return a validator of a registered schema, of the draft that it names, else draft 7 as Confluent's serializers.

    Raises SchemaError when it is not a JSON Schema. Nothing is read from the addresses that it may name.
    """
    import jsonschema_rs

    named: dict[str, Any] = {}

    def retrieve(uri: str) -> Any:
        name = next((name for name in named if uri == name or uri.endswith(f"/{name}")), None)
        if name is None:
            raise LookupError("it is not among the references of the schema in the registry")
        return named[name]

    try:
        for name, text in found.references:
            named[name] = msgspec.json.decode(text)
        schema = msgspec.json.decode(found.text)
        is_named = isinstance(schema, dict) and "$schema" in schema
        draft = jsonschema_rs.validator_cls_for(schema) if is_named else jsonschema_rs.Draft7Validator
        one = draft(schema, retriever=retrieve, base_uri=_BASE)
        return Validator(one, _all_valid(draft, schema, found.text), schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        raise SchemaError(f"{type(e).__name__}: {getattr(e, 'message', e)}") from e
