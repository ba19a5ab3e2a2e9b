"""Compiler: checks conditions and selections against a record type when a job is described."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from penstock.errors import ExpressionError, SchemaError
from penstock.expressions.binder import Binder
from penstock.expressions.columns import Column
from penstock.expressions.expression import Condition, Selection
from penstock.expressions.joined_records import JoinedRecords
from penstock.expressions.nodes import FieldValue, Node
from penstock.expressions.selected_fields import SelectedField, selected_type
from penstock.expressions.sql_text import ExpressionDialect, SqlPart, SqlText
from penstock.expressions.value_types import python_type_of, sql_name
from penstock.records.types import RecordType

__all__ = ["compile_condition", "compile_selection"]


def compile_condition(
    given: Any, records: RecordType, parameters: Mapping[str, pa.DataType] | None = None
) -> Condition:
    """Return a condition, from SQL text or a column. `parameters` are the types of those it may use.

    Raises ExpressionError, whose message has the position, if it does not fit the records.
    """
    text, parts = _read(given)
    if len(parts) != 1:
        at = text.position(parts[1])
        raise text.error(at, "A condition is a single expression; join several with AND or OR.")
    if isinstance(parts[0], exp.Alias):
        raise text.error(text.position(parts[0]), "A condition has no name; remove what comes after it.")
    binder = Binder(text, records, parameters or {}, _functions_of(given))
    node = binder.bind(parts[0])
    if not pa.types.is_boolean(node.type):
        raise text.error(
            text.position(parts[0]), f"This is {sql_name(node.type)}, but a condition is BOOLEAN."
        )
    return Condition(_shown(given), node, binder.used_parameters)


def compile_selection(
    given: Sequence[Any], records: RecordType, parameters: Mapping[str, pa.DataType] | None = None
) -> Selection:
    """Return the fields that expressions make, each SQL text or a column: `room`, `celsius * 2 AS twice`, `*`.

    Raises ExpressionError, whose message has the position, if one does not fit the records or has no name.
    """
    if not given:
        raise ExpressionError(
            'select needs at least one expression: readings.select("room", "celsius + 1 AS more").'
        )
    texts: list[str] = []
    fields: list[SelectedField] = []
    nodes: list[Node] = []
    used: dict[str, None] = {}
    for one in given:
        text, parts = _read(one)
        binder = Binder(text, records, parameters or {}, _functions_of(one))
        for part in parts:
            for name, node in _select(text, binder, part, records):
                if name in [field.name for field in fields]:
                    raise text.error(text.position(part), f"There are two fields {name!r}; name one with AS.")
                texts.append(_shown(one))
                fields.append(_field(text, part, name, node))
                nodes.append(node)
        used |= dict.fromkeys(binder.used_parameters)
    return Selection(tuple(texts), tuple(nodes), selected_type(records, tuple(fields)), tuple(used))


def _select(
    text: SqlText, binder: Binder, part: exp.Expression, records: RecordType
) -> list[tuple[str, Node]]:
    """Return the fields that a part of a selection makes."""
    if isinstance(part, exp.Star):
        if any(part.args.values()):
            raise text.error(0, "'*' stands alone, for all fields.")
        named = [(f.name, f) for f in records.fields]
        if isinstance(records, JoinedRecords):
            named = records.fields_of(None)
        return [(name, FieldValue(f.arrow_type, f.nullable, f.name)) for name, f in named]
    if (
        isinstance(part, exp.Column)
        and isinstance(part.this, exp.Star)
        and isinstance(records, JoinedRecords)
    ):
        of_side = records.fields_of(part.table)
        if not of_side:
            raise text.error(text.position(part), f"There is no side {part.table!r}.")
        return [(name, FieldValue(f.arrow_type, f.nullable, f.name)) for name, f in of_side]
    if isinstance(part, exp.Alias):
        name = part.alias
        if not name.isidentifier() or name.startswith("__"):
            raise text.error(
                text.position(part.args["alias"]),
                f"{name!r} is not a name of a field, which is as in Python.",
            )
        return [(name, binder.bind(part.this))]
    node = binder.bind(part)
    if isinstance(part, exp.Column):
        return [(part.name, node)]
    raise text.error(text.position(part), "Name this field: write AS and a name after the expression.")


def _field(text: SqlText, part: exp.Expression, name: str, node: Node) -> SelectedField:
    """Return the field of a result. A field that is copied stays of its type, such as an enumeration."""
    if isinstance(node, FieldValue):
        return SelectedField(name, node.name)
    try:
        python_type_of(node.type)
    except SchemaError as e:
        raise text.error(text.position(part.this if isinstance(part, exp.Alias) else part), str(e)) from None
    return SelectedField(name, None, node.type, node.nullable)


def _read(given: Any) -> tuple[SqlText, list[exp.Expression]]:
    """Return the text of what was given, and the expressions in it."""
    if isinstance(given, SqlPart):
        return given.text, [given.part]
    text = SqlText(_shown(given))
    return text, text.read()


def _functions_of(given: Any) -> Mapping[str, Any]:
    return given.functions if isinstance(given, SqlPart) else {}


def _shown(given: Any) -> str:
    if isinstance(given, SqlPart):
        # A parameter has another form while it is parsed.
        part = given.part.copy()
        for name in part.find_all(exp.Identifier):
            name.set("quoted", not name.name.isidentifier())
        return re.sub(r":([A-Za-z_]\w*)", r"${\1}", part.sql(dialect=ExpressionDialect))
    if isinstance(given, Column):
        return given.sql
    if isinstance(given, str):
        return given
    raise ExpressionError(
        f'{given!r} is not an expression. Give SQL text, such as "celsius > 30", or ps.col("celsius") > 30.'
    )
