"""Payloads: descriptions and examples of the payloads of commands, for people who send one by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.control.commands import DumpRequest
from penstock.engine.command_validation import AcceptedStep, payload_decoder
from penstock.models.orders import MODEL_ORDERS

__all__ = ["SETTINGS", "Payload", "payload_key", "payload_of_type", "payloads_of"]

SETTINGS: Final = "set settings"
"""The payload of `set` names settings if the target is a step, and states if it is keys."""

_NAMES: Final = {
    "integer": "int",
    "number": "float",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}
_EXAMPLES: Final[Mapping[str, Any]] = {
    "integer": 1,
    "number": 1.5,
    "string": "text",
    "boolean": True,
    "null": None,
}
_FORMAT_EXAMPLES: Final = {"date-time": "2026-12-01T12:00:00Z", "date": "2026-12-01", "decimal": "1.5"}
# Types may contain themselves.
_MAX_DEPTH: Final = 4
_ANYTHING: Final = "any JSON"


class Payload(msgspec.Struct, frozen=True):
    """The payload of a command: its type in words, and an example as JSON; both are empty if the command has none."""

    type: str
    example: str


def payload_key(kind: str, scope: str) -> str:
    """Return the name of the payload of a kind of commands, in a scope."""
    return SETTINGS if kind == "set" and scope == "step" else kind


def payloads_of(step: AcceptedStep) -> dict[str, Payload]:
    """Describe the payloads of all commands that a step takes, by the names of `payload_key`."""
    known = {handler.kind: payload_of_type(handler.payload_type) for handler in step.handlers.values()}
    found: dict[str, Payload] = {}
    for kind in step.kinds:
        if kind in known:
            found[kind] = known[kind]
        elif kind == "set":
            found |= _of_set(step)
        elif kind == "reload-config":
            found[kind] = Payload(
                "{from: text}, a file or address that the run allows", '{"from": "https://..."}'
            )
        elif kind == "dump-state":
            found[kind] = payload_of_type(DumpRequest)
        elif kind in MODEL_ORDERS:
            found[kind] = payload_of_type(MODEL_ORDERS[kind])
        else:
            found[kind] = Payload("", "")
    return found


def payload_of_type(payload_type: Any) -> Payload:
    """Describe the payload that a handler declares.

    >>> payload_of_type(dict[str, int])
    Payload(type='{name: int}', example='{"name":1}')
    >>> payload_of_type(None)
    Payload(type='', example='')
    """
    if payload_type is None or payload_type is type(None):
        return Payload("", "")
    try:
        (schema,), parts = msgspec.json.schema_components([payload_type], ref_template="{name}")
    except (TypeError, RuntimeError):
        # The class defines how its values are read.
        return Payload(_ANYTHING, "")
    words = _Words(parts)
    example = msgspec.json.encode(words.example_of(schema))
    try:
        payload_decoder(payload_type).decode(example)
    except msgspec.MsgspecError:
        # A type may need more than its schema says, as datetimes do.
        example = b""
    return Payload(words.type_of(schema), example.decode())


def _of_set(step: AcceptedStep) -> dict[str, Payload]:
    found = {}
    for name, declared in (("set", step.states), (SETTINGS, step.settings)):
        values = {key: payload_of_type(one.set_type) for key, one in declared.items()}
        if values:
            types = ", ".join(f"{key}: {value.type}" for key, value in values.items())
            first, example = next(iter(values.items()))
            text = f"{{{msgspec.json.encode(first).decode()}:{example.example or 'null'}}}"
            found[name] = Payload(f"some of {{{types}}}", text)
    return found


class _Words:
    """Describes a JSON schema in words and by an example; `parts` are the types that it names."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts: Final = parts

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        name = schema.get("$ref")
        return schema if name is None else self._parts[name]

    def type_of(self, schema: Mapping[str, Any], depth: int = 0) -> str:
        """Describe the type in words."""
        schema = self._resolved(schema)
        if depth > _MAX_DEPTH:
            return "..."
        if "enum" in schema:
            return " or ".join(msgspec.json.encode(value).decode() for value in schema["enum"])
        if "const" in schema:
            return msgspec.json.encode(schema["const"]).decode()
        if "anyOf" in schema:
            return " or ".join(self.type_of(one, depth + 1) for one in schema["anyOf"])
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            required = schema.get("required", ())
            fields = (
                name + ("" if name in required else "?") + ": " + self.type_of(one, depth + 1)
                for name, one in schema["properties"].items()
            )
            return f"{{{', '.join(fields)}}}"
        if kind == "object":
            return f"{{name: {self.type_of(_rest(schema), depth + 1)}}}"
        if kind == "array":
            items = schema.get("prefixItems") or [_items(schema)]
            return f"[{', '.join(self.type_of(one, depth + 1) for one in items)}]"
        return str(schema.get("format") or _NAMES.get(kind or "", _ANYTHING))

    def example_of(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """Return a value of the type; optional fields are there only if they have a default."""
        schema = self._resolved(schema)
        if depth > _MAX_DEPTH:
            return None
        if "enum" in schema:
            return schema["enum"][0]
        if "const" in schema:
            return schema["const"]
        if "anyOf" in schema:
            choices = [one for one in schema["anyOf"] if one.get("type") != "null"]
            return self.example_of(choices[0], depth + 1)
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            required = schema.get("required", ())
            return {
                name: one["default"] if "default" in one else self.example_of(one, depth + 1)
                for name, one in schema["properties"].items()
                if name in required or one.get("default") is not None
            }
        if kind == "object":
            return {"name": self.example_of(_rest(schema), depth + 1)}
        if kind == "array":
            items = schema.get("prefixItems") or [_items(schema)]
            return [self.example_of(one, depth + 1) for one in items]
        return _FORMAT_EXAMPLES.get(schema.get("format", ""), _EXAMPLES.get(kind or ""))


def _rest(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the type of the values of a mapping."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _items(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("items")
    return found if isinstance(found, dict) else {}
