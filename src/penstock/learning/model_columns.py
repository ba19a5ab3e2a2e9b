"""Model columns: the numbers of a model's document as columns with names, as long as the model keeps its shape."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["DOCUMENT", "ModelColumns", "same_shape"]

DOCUMENT: Final = "document"
"""The column for models of another shape: the whole document, as JSON."""

_MOST_COLUMNS: Final = 64
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
# Numbers under these keys say how something is made, not what was learned.
_CONSTANTS: Final = ("#shape", "#as", "#most", "#order", "#type", "#name")
_UNNAMED: Final = ("#values", "#items", "#value", "#pairs", "steps")


class _Leaf(NamedTuple):
    """The place of a number in a document: the number of its column."""

    at: int


class ModelColumns:
    """The columns of models whose documents have the shape of a sample document, made after some learning.

    Without a document, or with one of more than 64 numbers, all models are kept as documents.
    """

    def __init__(self, settled: Any = None) -> None:
        parts, leaves = _flatten(settled)
        is_kept = 0 < len(leaves) <= _MOST_COLUMNS
        self._parts: list[Any] = parts if is_kept else []
        self._names = _names(settled) if is_kept else []
        self._kinds = [type(leaf) for leaf in leaves] if is_kept else []
        self._form = _numbered(settled, iter(range(len(leaves)))) if is_kept else None

    def types(self) -> dict[str, Any]:
        """Return the type of each column by name; all may be null."""
        return dict(zip(self._names, self._kinds, strict=True)) | {DOCUMENT: str}

    def split(self, document: Any) -> dict[str, Any]:
        """Return the columns of a document."""
        if self._parts:
            parts, leaves = _flatten(document)
            if parts == self._parts:
                return dict(zip(self._names, leaves, strict=True)) | {DOCUMENT: None}
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        return dict.fromkeys(self._names) | {DOCUMENT: text}

    def join(self, values: Mapping[str, Any]) -> Any:
        """Return the document of columns. Nulls are left out, so those parts are as in a fresh model."""
        text = values[DOCUMENT]
        if text is not None:
            return json.loads(text)
        if self._form is None:
            raise ValueError("a model of this kind is its document, and there is none")
        return _fill(self._form, [values[name] for name in self._names])


def same_shape(document: Any, other: Any) -> bool:
    """Return whether two documents have the same shape."""
    return _flatten(document)[0] == _flatten(other)[0]


def _flatten(document: Any) -> tuple[list[Any], list[Any]]:
    """Return the shape of a document, and its numbers in order."""
    parts: list[Any] = []
    leaves: list[Any] = []
    _flatten_into(document, parts, leaves)
    return parts, leaves


def _flatten_into(node: Any, parts: list[Any], leaves: list[Any]) -> None:
    kind = type(node)
    if kind is float or kind is bool or (kind is int and _LEAST_INT <= node <= _MOST_INT):
        parts.append(kind)
        leaves.append(node)
    elif kind is dict:
        if node.get("#") == "float":
            parts.append(float)
            leaves.append(float(node["#value"]))
            return
        parts.append("{")
        for name, value in node.items():
            parts.append(name)
            if name in _CONSTANTS:
                parts.append(repr(value))
            elif name == "#pairs":
                for key, held in value:
                    parts.append(repr(key))
                    _flatten_into(held, parts, leaves)
            else:
                _flatten_into(value, parts, leaves)
        parts.append("}")
    elif kind is list:
        parts.append("[")
        for value in node:
            _flatten_into(value, parts, leaves)
        parts.append("]")
    else:
        parts.append(("=", node))


def _numbered(node: Any, numbers: Any) -> Any:
    """Return a document in which each number is replaced by that of its column, in the order of `_flatten`."""
    kind = type(node)
    if kind is float or kind is bool or (kind is int and _LEAST_INT <= node <= _MOST_INT):
        return _Leaf(next(numbers))
    if kind is list:
        return [_numbered(value, numbers) for value in node]
    if kind is not dict:
        return node
    if node.get("#") == "float":
        return _Leaf(next(numbers))
    found: dict[str, Any] = {}
    for name, value in node.items():
        if name in _CONSTANTS:
            found[name] = value
        elif name == "#pairs":
            found[name] = [[key, _numbered(held, numbers)] for key, held in value]
        else:
            found[name] = _numbered(value, numbers)
    return found


def _fill(node: Any, values: list[Any]) -> Any:
    """Return a document with the numbers of columns."""
    kind = type(node)
    if kind is _Leaf:
        return values[node.at]
    if kind is list:
        found = [_fill(value, values) for value in node]
        if any(type(value) is _Leaf and values[value.at] is None for value in node):
            raise ValueError("a model in columns has all numbers of a list, or its document")
        return found
    if kind is not dict:
        return node
    made: dict[str, Any] = {}
    for name, value in node.items():
        if name == "#pairs":
            made[name] = [
                [key, _fill(held, values)]
                for key, held in value
                if type(held) is not _Leaf or values[held.at] is not None
            ]
        elif type(value) is not _Leaf or values[value.at] is not None:
            made[name] = value if name in _CONSTANTS else _fill(value, values)
    return made


def _names(document: Any) -> list[str]:
    """Return a name for each number, from the attributes that lead to it."""
    paths: list[tuple[str, ...]] = []
    _name_into(document, (), paths)
    found: list[str] = []
    taken = {DOCUMENT}
    for path in paths:
        name = re.sub(r"\W+", "_", "_".join(part.strip("_") for part in path)).strip("_") or "value"
        if not name.isidentifier() or keyword.iskeyword(name):
            name = f"at_{name}"
        unique, number = name, 2
        while unique.lower() in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique.lower())
        found.append(unique)
    return found


def _name_into(node: Any, path: tuple[str, ...], paths: list[tuple[str, ...]]) -> None:
    kind = type(node)
    if kind is float or kind is bool or (kind is int and _LEAST_INT <= node <= _MOST_INT):
        paths.append(path)
    elif kind is list:
        for at, value in enumerate(node):
            _name_into(value, (*path, str(at)), paths)
    elif kind is dict:
        if node.get("#") == "float":
            paths.append(path)
            return
        for name, value in node.items():
            if name in _CONSTANTS:
                continue
            if name == "#pairs":
                for key, held in value:
                    _name_into(held, (*path, str(key)), paths)
            else:
                _name_into(value, path if name in _UNNAMED else (*path, name.lstrip("#")), paths)
