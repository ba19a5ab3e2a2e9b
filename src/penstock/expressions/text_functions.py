"""Text functions: functions of expressions that take or make text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.expressions.arguments import any_nullable, literal_of, require_argument
from penstock.expressions.casts import cast
from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Node
from penstock.expressions.value_types import BOOLEAN, STRING, is_text, sql_name


def of_text(function: Callable[..., Any], kind: pa.DataType = STRING) -> Callable[[Node], Node]:
    """Return a binder of a function of one text."""
    return lambda text: Call(kind, text.nullable, function, (require_argument(text, "text"),))


def with_part(function: Callable[..., Any]) -> Callable[[Node, Node], Node]:
    """Return a binder of a condition on a text and a literal part of it."""

    def bind(text: Node, part: Node) -> Node:
        pattern = literal_of(part, "text", 2)
        return Call(
            BOOLEAN,
            text.nullable,
            functools.partial(function, pattern=pattern),
            (require_argument(text, "text"),),
        )

    return bind


def regex(text: Node, pattern: Node) -> Node:
    """Bind regexp_like."""
    found = literal_of(pattern, "text", 2)
    _check_regex(found)
    return Call(
        BOOLEAN,
        text.nullable,
        functools.partial(pc.match_substring_regex, pattern=found),
        (require_argument(text, "text"),),
    )


def _check_regex(pattern: str) -> None:
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowException as e:
        raise SchemaError(f"{pattern!r} is not a regular expression: {e}") from None


def regexp_replace(text: Node, pattern: Node, replacement: Node) -> Node:
    """Bind regexp_replace."""
    found, put = literal_of(pattern, "text", 2), literal_of(replacement, "text", 3)
    _check_regex(found)
    function = functools.partial(pc.replace_substring_regex, pattern=found, replacement=put)
    try:
        function(pa.array([""]))
    except pa.ArrowException as e:
        raise SchemaError(f"{put!r} is not a replacement: {e}") from None
    return Call(STRING, text.nullable, function, (require_argument(text, "text"),))


def regexp_extract(text: Node, pattern: Node) -> Node:
    """Bind regexp_extract."""
    found = literal_of(pattern, "text", 2)
    _check_regex(found)
    try:
        _extract(pa.array([""]), found)
    except pa.ArrowException:
        # It has no group, so the whole match counts.
        found = f"({found})"
    return Call(STRING, True, functools.partial(_extract, pattern=found), (require_argument(text, "text"),))


def _extract(text: Value, pattern: str) -> Value:
    """Return the first group of the first match, null without a match."""
    all_of_it = rf"^[\s\S]*?(?:{pattern})[\s\S]*$"
    found = pc.replace_substring_regex(text, all_of_it, r"\1")
    return pc.if_else(pc.match_substring_regex(text, pattern), found, pa.scalar(None, STRING))


def substring(text: Node, start: Node, length: Node | None = None) -> Node:
    """Bind substring: positions count from 1, or from the end if they are negative."""
    first = literal_of(start, "integer", 2)
    begin = first - 1 if first > 0 else first
    end = None
    if length is not None:
        count = literal_of(length, "integer", 3)
        if count < 0:
            raise SchemaError("argument 3 is a length, and must not be negative")
        end = begin + count if begin >= 0 or begin + count < 0 else None
        end = begin if count == 0 else end
    function = functools.partial(pc.utf8_slice_codeunits, start=begin, stop=end)
    return Call(STRING, text.nullable, function, (require_argument(text, "text"),))


def left(text: Node, length: Node) -> Node:
    """Bind left."""
    count = max(literal_of(length, "integer", 2), 0)
    return Call(
        STRING,
        text.nullable,
        functools.partial(pc.utf8_slice_codeunits, start=0, stop=count),
        (require_argument(text, "text"),),
    )


def right(text: Node, length: Node) -> Node:
    """Bind right."""
    count = max(literal_of(length, "integer", 2), 0)
    function = functools.partial(
        pc.utf8_slice_codeunits, start=-count if count else 0, stop=None if count else 0
    )
    return Call(STRING, text.nullable, function, (require_argument(text, "text"),))


def bind_padding(function: Callable[..., Any]) -> Callable[..., Node]:
    """Return a binder of lpad or rpad."""

    def bind(text: Node, width: Node, padding: Node) -> Node:
        length, put = literal_of(width, "integer", 2), literal_of(padding, "text", 3)
        if len(put) != 1 or not 0 <= length <= 10_000:
            raise SchemaError("the width must be 0 to 10000, and the padding one character")
        found = functools.partial(function, width=length, padding=put)
        return Call(STRING, text.nullable, found, (require_argument(text, "text"),))

    return bind


def concat(*parts: Node) -> Node:
    """Bind concat, which is null if one of its parts is."""
    texts: list[Node] = []
    for number, part in enumerate(parts, 1):
        found = part if is_text(part.type) else cast(part, STRING)
        if found is None:
            raise SchemaError(f"argument {number} is {sql_name(part.type)}, which has no text")
        texts.append(found)
    return Call(STRING, any_nullable(*parts), _join, tuple(texts))


def _join(*texts: Value) -> Value:
    return pc.binary_join_element_wise(*texts, "")


def replace(text: Node, old: Node, new: Node) -> Node:
    """Bind replace."""
    found, put = literal_of(old, "text", 2), literal_of(new, "text", 3)
    if not found:
        return require_argument(text, "text")
    function = functools.partial(pc.replace_substring, pattern=found, replacement=put)
    return Call(STRING, text.nullable, function, (require_argument(text, "text"),))


def split(text: Node, separator: Node) -> Node:
    """Bind split."""
    found = literal_of(separator, "text", 2)
    if not found:
        raise SchemaError("argument 2 must not be empty")
    kind = pa.list_(STRING)
    return Call(
        kind, text.nullable, functools.partial(_split_text, pattern=found), (require_argument(text, "text"),)
    )


def _split_text(text: Value, pattern: str) -> Value:
    return pc.cast(pc.split_pattern(text, pattern), pa.list_(STRING))
