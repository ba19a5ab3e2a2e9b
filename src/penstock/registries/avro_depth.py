"""Avro depth: refuse messages that nest too deep for a reader, and arrays that have no end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from penstock.errors import SchemaError

__all__ = ["DepthCheck", "make_depth_check"]

_MOST_LEVELS: Final = 1000
# The reader calls itself for each level, which may take one byte. It survives this many levels.
_SAFE_BYTES: Final = 1024
_FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_MOST_DIGITS: Final = 10
_RECORDS: Final = ("record", "error")


class DepthCheck(Protocol):
    """A check of the depth of messages."""

    def __call__(self, message: bytes, begin: int) -> None:
        """Raise ValueError for a message, which has its record at a position, that is nested too deep to be read."""


def make_depth_check(schema: Any, named: Mapping[str, Any]) -> DepthCheck | None:
    """Return a check for messages of a parsed schema, or None if the schema bounds their depth.

    `named` are the types that have names. Raises SchemaError for arrays whose items take no bytes, since a few bytes
    can say that there are billions.
    """
    if not _Types(named).is_recursive(schema, ()):
        return None

    def check(message: bytes, begin: int) -> None:
        if len(message) - begin > _SAFE_BYTES:
            _check_depth(_Walk(message, begin, named), schema)

    return check


class _Types:
    """A walk through a schema, each type with a name once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named: Final = named
        self._known: Final[set[str]] = set()

    def is_recursive(self, schema: Any, around: tuple[str, ...]) -> bool:
        """Return whether a type is within itself. Raises SchemaError."""
        schema = _resolve(schema, self._named)
        if isinstance(schema, list):
            return self._any_recursive(schema, around)
        if not isinstance(schema, dict):
            return False
        kind = schema["type"]
        if kind in _RECORDS:
            name = schema["name"]
            if name in around:
                return True
            if name in self._known:
                return False
            self._known.add(name)
            return self._any_recursive([field["type"] for field in schema["fields"]], (*around, name))
        if kind == "array" and self._is_empty(schema["items"], ()):
            raise SchemaError("it has an array whose items take no bytes")
        inner = [schema[part] for part in ("items", "values") if part in schema]
        return self._any_recursive([*inner, kind] if isinstance(kind, dict | list) else inner, around)

    def _any_recursive(self, schemas: Iterable[Any], around: tuple[str, ...]) -> bool:
        found = False
        for schema in schemas:
            # All of them are looked at, since each may have to be refused.
            found = self.is_recursive(schema, around) or found
        return found

    def _is_empty(self, schema: Any, around: tuple[str, ...]) -> bool:
        """Return whether values of a type take no bytes."""
        schema = _resolve(schema, self._named)
        if not isinstance(schema, dict):
            return bool(schema == "null")
        kind = schema["type"]
        if kind in _RECORDS:
            inside = (*around, schema["name"])
            return schema["name"] in around or all(
                self._is_empty(field["type"], inside) for field in schema["fields"]
            )
        return bool(kind == "null" or (kind == "fixed" and not schema["size"]))


def _resolve(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return what a name stands for, and a type in a dictionary of its own as it is."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    return schema


class _Walk:
    """A walk through one message, without a call within a call."""

    def __init__(self, message: bytes, begin: int, named: Mapping[str, Any]) -> None:
        self._message: Final = message
        self._at = begin
        self._named: Final = named

    def parts(self, schema: Any) -> Iterator[Any]:
        """Pass over a value, and yield the types of the values within it, each when it is there."""
        schema = _resolve(schema, self._named)
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise ValueError(f"a union has no branch {branch}")
            yield schema[branch]
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _RECORDS:
            yield from [field["type"] for field in schema["fields"]]
        elif kind in ("array", "map"):
            yield from self._blocks(schema, is_map=kind == "map")
        elif kind in ("int", "long", "enum"):
            self._long()
        elif kind in ("string", "bytes"):
            self._skip(self._long())
        elif kind == "fixed":
            self._skip(schema["size"])
        elif kind in _FIXED_BYTES:
            self._skip(_FIXED_BYTES[kind])
        else:
            yield kind

    def _blocks(self, schema: Any, *, is_map: bool) -> Iterator[Any]:
        while count := self._long():
            if count < 0:
                self._long()
            for _ in range(abs(count)):
                if is_map:
                    self._skip(self._long())
                yield schema["values" if is_map else "items"]

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._message) - self._at:
            raise ValueError("the message ends within what its schema describes")
        self._at += size

    def _long(self) -> int:
        found = 0
        for place, byte in enumerate(self._message[self._at : self._at + _MOST_DIGITS]):
            found |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self._at += place + 1
                return (found >> 1) ^ -(found & 1)
        raise ValueError("the message ends within what its schema describes")


def _check_depth(walk: _Walk, schema: Any) -> None:
    open_values = [walk.parts(schema)]
    while open_values:
        inner = next(open_values[-1], None)
        if inner is None:
            open_values.pop()
        elif len(open_values) == _MOST_LEVELS:
            raise ValueError(f"the message is nested more than {_MOST_LEVELS} levels deep")
        else:
            open_values.append(walk.parts(inner))
