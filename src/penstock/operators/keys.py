"""Key selectors: the fields or the function that select the key of a record."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import JobDefinitionError, SchemaError
from penstock.records.nested_values import without_none
from penstock.records.schemas import arrow_type_of
from penstock.records.small_columns import cast_column
from penstock.records.types import Field, RecordType
from penstock.state.key_groups import check_key_type
from penstock.state.parts import PART_KEY_TYPE

__all__ = ["KeySelector", "key_selector", "place_selector"]


@dataclass(frozen=True)
class KeySelector:
    """Selects the key of records: one or several fields, or the result of a function.

    `key_type` is the stored type of keys; integers of any width are stored as int64. `parts` are the values that a
    function returns: one, or several as a tuple. If `by_place`, the records have no key of their own: their source
    partition determines their part, and they carry the key of that part.
    """

    record_type: RecordType
    fields: tuple[str, ...]
    function: Callable[[Any], Any] | None
    key_type: pa.DataType
    parts: tuple[Field, ...] = ()
    by_place: bool = False

    @property
    def computed(self) -> bool:
        """Whether the record carries the key in a separate column because its fields do not hold it."""
        return self.function is not None or self.by_place

    @property
    def field(self) -> str | None:
        """The key field, if the key is a single field; else None."""
        return self.fields[0] if len(self.fields) == 1 else None

    def column(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the keys of a batch, which may be null. Errors of a key function propagate."""
        if self.function is not None:
            return self._computed(list(map(self.function, self.record_type.objects(batch))))
        if self.field is not None:
            return cast_column(batch.column(self.field), self.key_type)
        children = [
            cast_column(batch.column(f), t.type) for f, t in zip(self.fields, self.key_type, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(self.key_type))

    def _computed(self, keys: list[Any]) -> pa.Array:
        if not pa.types.is_struct(self.key_type):
            return cast_column(self.parts[0].to_arrow(keys, check=False), self.key_type)
        nothing = (None,) * len(self.parts)
        values = zip(*(nothing if key is None else key for key in keys), strict=True)
        columns = list(values) if keys else [()] * len(self.parts)
        if len(columns) != len(self.parts):
            raise ValueError(
                f"the key function returned tuples of {len(columns)} parts, not of {len(self.parts)}"
            )
        children = [
            cast_column(part.to_arrow(column, check=False), target.type)
            for part, column, target in zip(self.parts, columns, self.key_type, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(self.key_type))


def place_selector(record_type: RecordType) -> KeySelector:
    """Return the selector for records without a key."""
    return KeySelector(record_type, (), None, PART_KEY_TYPE, by_place=True)


def key_selector(
    record_type: RecordType, key: tuple[str | Callable[[Any], Any], ...], key_type: Any
) -> KeySelector:
    """Return the selector for `key_by(*key, key_type=...)` on a stream of `record_type`.

    Raises SchemaError for fields that do not exist or cannot be keys, and JobDefinitionError for a function whose
    result type is unknown.
    """
    if not key:
        raise JobDefinitionError("key_by needs a field, several fields, or a function.")
    if callable(key[0]):
        if len(key) > 1:
            raise JobDefinitionError(
                "key_by takes either field names or one function; return a tuple for several parts."
            )
        declared = without_none(key_type if key_type is not None else _result_type(key[0]))[0]
        if typing.get_origin(declared) is not tuple:
            part = Field("key", declared, arrow_type_of(declared), nullable=True)
            return KeySelector(record_type, (), key[0], check_key_type(part.arrow_type), (part,))
        types = [without_none(hint)[0] for hint in typing.get_args(declared)]
        parts = tuple(
            Field(f"part_{i}", kind, arrow_type_of(kind), nullable=True) for i, kind in enumerate(types)
        )
        fields = [pa.field(part.name, check_key_type(part.arrow_type), nullable=False) for part in parts]
        return KeySelector(record_type, (), key[0], pa.struct(fields), parts)
    names: Sequence[str] = [str(name) for name in key]
    found = [record_type.field(name) for name in names]
    types = []
    for field in found:
        try:
            types.append(check_key_type(field.arrow_type))
        except SchemaError as e:
            raise SchemaError(f"{record_type.name}.{field.name}: {e}") from None
    if len(types) == 1:
        return KeySelector(record_type, tuple(names), None, types[0])
    struct = pa.struct([pa.field(n, t, nullable=False) for n, t in zip(names, types, strict=True)])
    return KeySelector(record_type, tuple(names), None, struct)


def _result_type(function: Callable[[Any], Any]) -> Any:
    try:
        hint = typing.get_type_hints(function).get("return") if hasattr(function, "__annotations__") else None
    except NameError as e:
        raise JobDefinitionError(f"The result type of a key function cannot be resolved: {e}.") from e
    if hint is None:
        raise JobDefinitionError(
            "key_by has a function whose result type is not known. Annotate it (-> int), or add key_type=int."
        )
    return hint
