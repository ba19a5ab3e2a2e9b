"""Arguments: checks of the arguments in a call of a function."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.expressions.casts import widen
from penstock.expressions.nodes import Constant, Node
from penstock.expressions.value_types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    is_number,
    is_text,
    sql_name,
)

__all__ = ["any_nullable", "literal_of", "require_argument"]


def any_nullable(*nodes: Node) -> bool:
    """Return whether one of some nodes can be null."""
    return any(node.nullable for node in nodes)


def require_argument(node: Node, what: str, number: int = 1) -> Node:
    """Return an argument of a kind. Raises SchemaError for another."""
    kind = node.type
    fits = {
        "text": is_text,
        "number": is_number,
        "integer": pa.types.is_integer,
        "boolean": pa.types.is_boolean,
        "array": pa.types.is_list,
        "array or map": lambda one: pa.types.is_list(one) or pa.types.is_map(one),
        "date or timestamp": lambda one: one.equals(DATE) or one.equals(TIMESTAMP),
    }
    if pa.types.is_null(kind):
        types = {
            "text": STRING,
            "number": DOUBLE,
            "integer": INT,
            "boolean": BOOLEAN,
            "date or timestamp": TIMESTAMP,
        }
        if what in types:
            return widen(node, types[what])
    if not fits[what](kind):
        article = "an" if what[0] in "aeiou" else "a"
        raise SchemaError(f"argument {number} must be {article} {what}, and is {sql_name(kind)}")
    return node


def literal_of(node: Node, what: str, number: int) -> Any:
    """Return the value of an argument that must be a literal."""
    found = require_argument(node, what, number)
    if not isinstance(found, Constant) or not found.value.is_valid:
        raise SchemaError(f"argument {number} must be a literal, so that it is the same for all records")
    return found.value.as_py()
