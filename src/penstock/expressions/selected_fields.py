"""Selected fields: the record type of a selection, which can be sent to the workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from penstock.expressions.value_types import python_type_of
from penstock.records.types import Field, RecordType, struct_class

__all__ = ["SelectedField", "selected_type"]


@dataclasses.dataclass(frozen=True)
class SelectedField:
    """A field of a selection: a copy of the field `source`, or a new one with its type."""

    name: str
    source: str | None
    type: pa.DataType | None = None
    nullable: bool = True


def selected_type(records: RecordType, selected: tuple[SelectedField, ...]) -> RecordType:
    """Return the type of records with selected fields. Those that are copied stay of their type in Python."""
    fields = [_field(records, one) for one in selected]
    # Classes of STRUCT fields cannot be imported by name, so the worker builds the type again.
    rebuild: tuple[Any, Any] = (_select_again, (records, selected))
    return RecordType("Record", fields, struct_class("Record", fields), rebuild)


def _select_again(given: tuple[RecordType, tuple[SelectedField, ...]]) -> RecordType:
    return selected_type(*given)


def _field(records: RecordType, one: SelectedField) -> Field:
    if one.source is not None:
        return dataclasses.replace(records.field(one.source), name=one.name)
    assert one.type is not None
    return Field(one.name, python_type_of(one.type), one.type, one.nullable)
