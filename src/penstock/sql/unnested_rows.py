"""Unnested rows: CROSS JOIN UNNEST, a row for each item of an array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from penstock.expressions.value_types import python_type_of, sql_name
from penstock.records.types import Field, RecordType, type_of_fields
from penstock.sql.relations import Expressions, Relation, column_named, unqualify

__all__ = ["unnest"]


class Unnest:
    """The function that makes a record for each item of a field, and none for null."""

    def __init__(self, field: str, made: RecordType) -> None:
        self.field: Final = field
        self.made: Final = made

    def __call__(self, record: Any) -> Iterator[Any]:
        """Yield the records."""
        kept = [getattr(record, name) for name in self.made.field_names[:-1]]
        for item in getattr(record, self.field) or ():
            yield self.made.python_class(*kept, item)


def unnest(relation: Relation, join: exp.Join, own: Expressions, base: str) -> Relation:
    """Return the rows of CROSS JOIN UNNEST(array) AS t (column). Raises ExpressionError for other forms."""
    source = join.this
    alias = source.args.get("alias")
    columns = [] if alias is None else alias.args.get("columns") or []
    plain = (join.kind or "").upper() in ("", "CROSS") and not join.side and join.args.get("on") is None
    more = source.args.get("offset") or len(source.expressions) != 1
    if not plain or more or len(columns) != 1 or relation.window is not None or relation.ranked is not None:
        raise own.error(source, "Write CROSS JOIN UNNEST(array) AS t (column).")
    name, table = str(columns[0].name), str(source.alias)
    if name in relation.columns or relation.sides:
        raise own.error(
            columns[0], f"There is a column {name!r} already, or a join; unnest in a query around it."
        )
    array = unqualify(source.expressions[0], relation, own)
    fields = [(one, column_named(one)) for one in relation.columns]
    stream = own.select(relation.stream, [*fields, (name, array)], f"{base}.arrays")
    kinds = stream.record_type
    found = kinds.field(name).arrow_type
    if not pa.types.is_list(found):
        raise own.error(source, f"UNNEST takes an array, not {sql_name(found)}.")
    item = Field(name, python_type_of(found.value_type), found.value_type, nullable=True)
    made = type_of_fields([*(kinds.field(one) for one in relation.columns), item])
    with own.errors_at(source):
        stream = stream.flat_map(Unnest(name, made), output=made, name=own.unique(f"{base}.unnest"))
    sides = {relation.alias: {one: one for one in relation.columns}, table: {name: name}}
    return dataclasses.replace(relation, stream=stream, sides=sides)
