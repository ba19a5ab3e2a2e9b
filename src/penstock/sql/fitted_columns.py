"""Fitted columns: gives the results of a query the names and types of a table, or of another query."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from penstock.expressions.value_types import common_type, sql_name
from penstock.sql.relations import Expressions, Relation, column_named

__all__ = ["WantedColumn", "common_columns", "fit_columns"]


@dataclass(frozen=True)
class WantedColumn:
    """A wanted column: its name, its type, and whether it may be null; None leaves it unchanged."""

    name: str
    type: pa.DataType | None = None
    nullable: bool | None = None


def common_columns(
    relations: Sequence[Relation], parts: Sequence[exp.Expression], own: Expressions
) -> list[WantedColumn]:
    """Return the columns that the results of all queries can have. Raises ExpressionError if there are none."""
    found = [WantedColumn(field.name, field.arrow_type, field.nullable) for field in relations[0].fields]
    for relation, part in zip(relations[1:], parts[1:], strict=True):
        fields = relation.fields
        if len(fields) != len(found):
            raise own.error(part, f"This query has {len(fields)} columns, and the first one {len(found)}.")
        for number, (wanted, field) in enumerate(zip(found, fields, strict=True)):
            assert wanted.type is not None
            kind = common_type(wanted.type, field.arrow_type)
            if kind is None:
                raise own.error(
                    part,
                    f"The column {field.name!r} is {sql_name(field.arrow_type)} here, and {sql_name(wanted.type)} "
                    "before; CAST one.",
                )
            found[number] = WantedColumn(wanted.name, kind, bool(wanted.nullable or field.nullable))
    return found


def fit_columns(
    relation: Relation,
    wanted: Sequence[WantedColumn],
    part: exp.Expression,
    own: Expressions,
    name: str,
    *,
    always: bool = False,
) -> Relation:
    """Return a relation with the wanted names and types, in their order. `always`: even if it has them already."""
    fields = relation.fields
    if len(fields) != len(wanted):
        raise own.error(part, f"The query has {len(fields)} columns, and the table {len(wanted)}.")
    items: list[tuple[str, exp.Expression]] = []
    differs = always
    for field, column in zip(fields, wanted, strict=True):
        made: exp.Expression = column_named(field.name, part)
        kind = field.arrow_type if column.type is None else column.type
        if column.nullable is False and field.nullable:
            raise own.error(
                part,
                f"The column {column.name!r} must not be null, and {field.name!r} may be; write COALESCE.",
            )
        if not kind.equals(field.arrow_type):
            common = common_type(kind, field.arrow_type)
            if common is None or not common.equals(kind):
                raise own.error(
                    part,
                    f"The column {column.name!r} is {sql_name(kind)}, and {field.name!r} is "
                    f"{sql_name(field.arrow_type)}; CAST it.",
                )
            made = exp.Cast(this=made, to=exp.DataType.build(sql_name(kind), dialect="spark"))
        if column.nullable and not field.nullable:
            # Both branches of a CASE count for whether it can be null.
            made = exp.Case(ifs=[exp.If(this=exp.true(), true=made)])
        differs = differs or not isinstance(made, exp.Column) or field.name != column.name
        items.append((column.name, made))
    if not differs:
        return relation
    time = relation.stream.origin.time
    for (made_name, _), field in zip(items, fields, strict=True):
        if made_name == time and field.name != time:
            raise own.error(
                part, f"{made_name!r} is the name of the event time of these records; rename the column."
            )
    times = frozenset(
        made_name for (made_name, _), field in zip(items, fields, strict=True) if relation.is_time(field.name)
    )
    return dataclasses.replace(relation, stream=own.select(relation.stream, items, name), times=times)
