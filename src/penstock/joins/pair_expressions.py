"""Pair expressions: the condition and the fields of a join, described with SQL over both sides, evaluated on pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ExpressionError, JobDefinitionError
from penstock.expressions.columns import Column
from penstock.expressions.expression import Condition, Selection
from penstock.expressions.joined_records import JoinedRecords, Side
from penstock.expressions.nodes import FieldValue, Node
from penstock.joins.held_rows import HeldRows, Ints, Mask, Sides
from penstock.records.types import Field, RecordType, python_values

__all__ = ["NONE", "How", "PairExpressions", "Pairs", "pair_expressions"]

How = Literal["inner", "left", "right", "full"]

NONE: Final = -1
"""The row of the other side of a record that has no match."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows, by their numbers in both sides, with the time of each. `NONE` stands for no row.

    `more` are further columns with a value for each pair.
    """

    left: Ints
    right: Ints
    times: Ints
    more: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.left)

    def where(self, keep: Mask) -> Pairs:
        """Return the pairs whose mask is true."""
        if keep.all():
            return self
        mask = pa.array(keep)
        more = {name: column.filter(mask) for name, column in self.more.items()}
        return Pairs(self.left[keep], self.right[keep], self.times[keep], more)

    def slots(self, left: HeldRows, right: HeldRows) -> Ints:
        """Return the slot of the key of each pair."""
        if not len(right):
            return left.slots[self.left]
        if not len(left):
            return right.slots[self.right]
        return np.where(self.left == NONE, right.slots[self.right], left.slots[self.left])


@dataclass(frozen=True)
class PairExpressions:
    """The checked condition and fields of a join, and how the sides are called."""

    aliases: tuple[str, str]
    condition: Condition | None
    selection: Selection

    @property
    def record_type(self) -> RecordType:
        """The type of the records that the join emits."""
        return self.selection.record_type

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that the condition or the fields use."""
        used = () if self.condition is None else self.condition.parameters
        return tuple(dict.fromkeys([*used, *self.selection.parameters]))

    def true(
        self, pairs: Pairs, sides: Sides, values: Mapping[str, pa.Scalar]
    ) -> tuple[Mask, dict[int, str]]:
        """Return for which pairs the condition is true, and why others have no value."""
        if self.condition is None or not len(pairs):
            return np.ones(len(pairs), bool), {}
        return self.condition.rows(self._columns(pairs, sides, [self.condition.node]), values)

    def selected(
        self, pairs: Pairs, sides: Sides, values: Mapping[str, pa.Scalar]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the records of all pairs, and why some pairs have no record."""
        return self.selection.columns(self._columns(pairs, sides, self.selection.nodes), values)

    def _columns(self, pairs: Pairs, sides: Sides, nodes: Sequence[Node]) -> pa.RecordBatch:
        """Return the columns of pairs that expressions use; a row that is missing has nulls."""
        used = dict.fromkeys(name for node in nodes for name in _fields_of(node))
        names, columns = ["@pair"], [pa.nulls(len(pairs))]
        for side, rows in enumerate((pairs.left, pairs.right)):
            places = pa.array(rows, mask=rows == NONE) if (rows == NONE).any() else pa.array(rows)
            alias = f"{self.aliases[side]}."
            for name in used:
                if name.startswith(alias):
                    column = pc.struct_field(sides[side].records, name.removeprefix(alias))
                    names.append(name)
                    columns.append(column.take(places) if len(column) else pa.nulls(len(rows), column.type))
        for name in used:
            if name in pairs.more:
                names.append(name)
                columns.append(pairs.more[name])
        return pa.RecordBatch.from_arrays(columns, names)

    def raw(self, pair: tuple[int, int], sides: Sides) -> bytes:
        """Return a pair as JSON, for a dead letter."""
        found = {
            alias: None if row == NONE else python_values(rows.records.slice(row, 1))[0]
            for alias, row, rows in zip(self.aliases, pair, sides, strict=True)
        }
        return msgspec.json.encode(found)


def _fields_of(node: Node) -> list[str]:
    """Return the fields that an expression uses, in order."""
    if isinstance(node, FieldValue):
        return [node.name]
    return [name for argument in node.arguments for name in _fields_of(argument)]


def pair_expressions(
    step: str,
    kinds: tuple[RecordType, RecordType],
    how: How,
    given: tuple[str | Column | None, Sequence[str | Column] | None],
    aliases: tuple[str, str],
    types: Mapping[str, pa.DataType],
    more: tuple[Field, ...] = (),
) -> PairExpressions:
    """Check the condition and the fields of a join. `given` has both; without fields, those of both sides are selected.

    Raises JobDefinitionError, of which ExpressionError is one, if they do not fit the records.
    """
    # It imports the parser, which workers do without.
    from penstock.expressions.compiler import compile_condition, compile_selection

    where, fields = given
    _check_aliases(step, aliases)
    matched = JoinedRecords((Side(aliases[0], kinds[0]), Side(aliases[1], kinds[1])), more)
    sides = (
        Side(aliases[0], kinds[0], how in ("right", "full")),
        Side(aliases[1], kinds[1], how in ("left", "full")),
    )
    if fields is None:
        _check_clashes(step, sides, more)
    try:
        condition = None if where is None else compile_condition(where, matched, types)
        chosen = ["*"] if fields is None else fields
        selection = compile_selection(chosen, JoinedRecords(sides, more), types)
    except ExpressionError as e:
        raise ExpressionError(f"Step {step!r}: {e}") from None
    found = PairExpressions(aliases, condition, selection)
    unused = next((name for name in types if name not in found.parameters), None)
    if unused is not None:
        raise JobDefinitionError(
            f"Step {step!r} declares the setting {unused!r}, but does not use ${{{unused}}}. Remove it."
        )
    return found


def _check_aliases(step: str, aliases: tuple[str, str]) -> None:
    if (
        len(aliases) != 2
        or not all(isinstance(alias, str) and alias.isidentifier() for alias in aliases)
        or aliases[0] == aliases[1]
    ):
        raise JobDefinitionError(
            f"Step {step!r}: aliases={aliases!r} are not two different names for the sides, as in "
            'aliases=("orders", "payments").'
        )


def _check_clashes(step: str, sides: tuple[Side, Side], more: tuple[Field, ...]) -> None:
    """Raise JobDefinitionError when both sides have a field of one name, which the result cannot."""
    left, right = sides
    names = [*left.records.field_names, *(field.name for field in more)]
    clash = next((name for name in right.records.field_names if name in names), None)
    clash = clash or next((field.name for field in more if field.name in left.records.field_names), None)
    if clash is not None:
        shown = f'fields=["{left.alias}.*", "{right.alias}.{clash} AS {right.alias}_{clash}"]'
        raise JobDefinitionError(
            f"Step {step!r}: both sides have the field {clash!r}, so not all fields can be in the result. Choose and "
            f"name them: {shown}."
        )
