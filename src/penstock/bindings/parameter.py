"""A parameter of URIs: where it is allowed, and how its value is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.bindings.secrets import check_reference
from penstock.bindings.types import RECORD_KEY, Role

__all__ = ["ALL_ROLES", "FILE_SCHEMES", "SOURCE_ROLES", "Parameter"]

SOURCE_ROLES: Final[tuple[Role, ...]] = ("data", "control")
ALL_ROLES: Final[tuple[Role, ...]] = ("data", "control", "sink")
FILE_SCHEMES: Final = ("jsonl", "csv", "parquet")

_Kind: TypeAlias = Literal[
    "character",
    "field",
    "field or key",
    "fields",
    "fields with names",
    "integer",
    "path",
    "secret",
    "text",
]


@dataclass(frozen=True)
class Parameter:
    """A query parameter of a URI: where it is allowed, its possible values, and what it does.

    `values` is "integer", "field" (the name of a field), "field or key" (likewise, or RECORD_KEY), "fields" (names),
    "fields with names" (each with another name after a colon if that differs), "path", "text", "secret" (a value,
    `env:NAME` or `file:PATH`), "character" (one, `tab` or `none`), or the allowed words. `default` describes what
    applies when it is left out.
    """

    name: str
    schemes: tuple[str, ...]
    roles: tuple[Role, ...]
    values: tuple[str, ...] | _Kind
    default: str
    meaning: str

    @property
    def form(self) -> str:
        """The written form: `name=a|b`, or `name=N` for an integer."""
        if isinstance(self.values, tuple):
            return f"{self.name}={'|'.join(self.values)}"
        return f"{self.name}={_FORMS[self.values]}"

    def parse(self, text: str) -> int | str | tuple[str, ...] | tuple[tuple[str, str], ...]:
        """Return the value of the parameter. Raises ValueError, which says what is wrong with it."""
        if self.values == "integer":
            if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
                raise ValueError(f"{self.name}={text!r} must be a whole number of at least 1")
            return int(text)
        if self.values == "field or key" and text == RECORD_KEY:
            return text
        if self.values in ("field", "field or key"):
            if not text.isidentifier():
                raise ValueError(f"{self.name}={text!r} must name one field")
            return text
        if self.values == "fields with names":
            return _names(self.name, text)
        if self.values == "fields":
            return _fields(self.name, text)
        if self.values == "secret":
            check_reference(self.name, text)
            return text
        if self.values in ("path", "text"):
            return text
        if self.values == "character":
            return _character(self.name, text)
        if text not in self.values:
            raise ValueError(f"{self.name}={text!r} must be one of {', '.join(self.values)}")
        return text


_FORMS: Final = {
    "integer": "N",
    "field": "FIELD",
    "field or key": f"FIELD|{RECORD_KEY}",
    "fields": "FIELD,...",
    "fields with names": "FIELD[:NAME],...",
    "path": "PATH",
    "text": "TEXT",
    "secret": "env:NAME|file:PATH|VALUE",
    "character": "CHARACTER|tab|none",
}


def _character(parameter: str, text: str) -> str:
    """Return a character, or "" for none. Raises ValueError when it cannot separate or quote values."""
    found = {"tab": "\t", "none": ""}.get(text, text)
    if found and (len(found) > 1 or not found.isascii() or found.isalnum() or found in "\r\n\0"):
        raise ValueError(
            f"{parameter}={text!r} must be one ASCII character that is not a letter or digit, tab, or none"
        )
    return found


def _fields(parameter: str, text: str) -> tuple[str, ...]:
    """Return fields. Raises ValueError when one is not a name or is repeated."""
    found = tuple(text.split(","))
    if not all(map(str.isidentifier, found)) or len(set(found)) < len(found):
        raise ValueError(f"{parameter}={text!r} must name fields, each once")
    return found


def _names(parameter: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return fields, each with its other name. Raises ValueError when one of them is empty or there twice."""
    pairs = [part.partition(":") for part in text.split(",")]
    found = tuple((field, other if colon else field) for field, colon, other in pairs)
    if not all(field.isidentifier() and other for field, other in found):
        raise ValueError(f"{parameter}={text!r} must name fields, each possibly followed by :NAME")
    names = [other for _, other in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{parameter}={text!r} gives the same name twice")
    return found
