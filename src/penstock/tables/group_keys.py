"""Group keys: the key of a group, in which a field may be null, as one column of integers or text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import JobDefinitionError
from penstock.operators.keys import KeySelector
from penstock.records.types import Field, RecordType

__all__ = ["GroupKey", "group_key"]

_NULL_INTEGER: Final = -(2**63)
_NULL_TEXT: Final = "\0"


@dataclass(frozen=True)
class GroupKey(KeySelector):
    """Selects the key of a group: null is a value like others.

    Integers and text stay as they are. Another type, or several fields, become a list in JSON: `["north",5,null]`.
    Without a field all records are in one group, whose key is `[]`.
    """

    group: tuple[Field, ...] = ()

    @property
    def computed(self) -> bool:
        """True: the record carries the key in a separate column."""
        return True

    @property
    def fields_of_group(self) -> tuple[Field, ...]:
        """The fields of the group."""
        return self.group

    def column(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the keys of a batch, none of which is null. Raises ValueError for an integer that stands for null."""
        columns = [batch.column(field.name) for field in self.group]
        if pa.types.is_integer(self.key_type):
            return _integer_key(columns[0], self.group[0].name)
        if _is_text_key(self.group):
            return _text_key(columns[0])
        return _json_key(columns, batch.num_rows)

    def group_columns(self, keys: pa.Array) -> list[pa.Array]:
        """Return the fields of the groups with some keys."""
        if not self.group:
            return []
        kinds = [field.arrow_type for field in self.group]
        if pa.types.is_integer(self.key_type):
            is_null = pc.equal(keys, _NULL_INTEGER)
            return [pc.if_else(is_null, pa.scalar(None, pa.int64()), keys).cast(kinds[0])]
        if _is_text_key(self.group):
            escaped = pc.starts_with(keys, _NULL_TEXT)
            if not pc.any(escaped).as_py():
                return [keys]
            is_null = pc.equal(keys, _NULL_TEXT)
            shortened = pc.if_else(escaped, pc.utf8_slice_codeunits(keys, 1), keys)
            return [pc.if_else(is_null, pa.scalar(None, pa.string()), shortened)]
        rows = [_JSON.decode(key) for key in keys.to_pylist()]
        return [_from_json([row[number] for row in rows], kind) for number, kind in enumerate(kinds)]


_JSON: Final = msgspec.json.Decoder(list[Any])


def group_key(records: RecordType, names: Sequence[str]) -> GroupKey:
    """Return the key of groups with equal fields. Raises JobDefinitionError for a field that cannot be part of one."""
    group = tuple(records.field(name) for name in names)
    for field in group:
        if pa.types.is_nested(field.arrow_type):
            raise JobDefinitionError(
                f"Records cannot be grouped by {field.name!r}, which is {field.arrow_type}; select a part of it first."
            )
    is_integer = len(group) == 1 and (
        pa.types.is_integer(group[0].arrow_type) or pa.types.is_boolean(group[0].arrow_type)
    )
    return GroupKey(records, tuple(names), None, pa.int64() if is_integer else pa.string(), group=group)


def _is_text_key(group: Sequence[Field]) -> bool:
    return len(group) == 1 and pa.types.is_string(group[0].arrow_type)


def _integer_key(column: pa.Array, name: str) -> pa.Array:
    keys = column.cast(pa.int64())
    if pa.types.is_int64(column.type) and pc.any(pc.equal(keys, _NULL_INTEGER)).as_py():
        raise ValueError(f"the group {name} is {_NULL_INTEGER}, which stands for null")
    return keys.fill_null(_NULL_INTEGER) if keys.null_count else keys


def _text_key(column: pa.Array) -> pa.Array:
    keys = column.cast(pa.string())
    starts = pc.starts_with(keys, _NULL_TEXT)
    if pc.any(starts).as_py():
        keys = pc.if_else(starts, pc.binary_join_element_wise(_NULL_TEXT, keys, ""), keys)
    return keys.fill_null(_NULL_TEXT) if keys.null_count else keys


def _json_key(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    if not columns:
        return pa.array(["[]"]).take(pa.array(np.zeros(rows, np.int64)))
    parts = [_as_json(column).fill_null("null") for column in columns]
    joined = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def _as_json(column: pa.Array) -> pa.Array:
    """Return values as JSON. Times are integers; text and values with a form as text are in quotes."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_floating(kind):
        # One text for both zeros.
        return _quote(pc.add(column.cast(pa.float64()), 0.0).cast(pa.string()))
    if pa.types.is_binary(kind):
        encoded = column.dictionary_encode()
        texts = [None if value is None else value.hex() for value in encoded.dictionary.to_pylist()]
        return _quote(pa.array(texts, pa.string()).take(encoded.indices))
    text = column.cast(pa.string())
    if pa.types.is_string(kind):
        return _escape(text)
    return _quote(text)


def _quote(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escape(text: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(text, r'["\\\x00-\x1f]')
    if not pc.any(special).as_py():
        return _quote(text)
    encoded = text.dictionary_encode()
    texts = [
        None if value is None else msgspec.json.encode(value).decode()
        for value in encoded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _from_json(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else bytes.fromhex(value) for value in values], kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.string()).cast(kind)
