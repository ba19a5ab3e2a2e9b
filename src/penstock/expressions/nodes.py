"""Nodes: the parts of a checked expression. Each has a type, and evaluates itself on rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.evaluation import Rows, Value

__all__ = ["Call", "Case", "Constant", "FieldValue", "Logic", "Node", "Parameter", "Try"]


@dataclass(frozen=True)
class Node:
    """A part of an expression, with the type of its values and whether they can be null."""

    type: pa.DataType
    nullable: bool

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The nodes that this one is computed from."""
        return ()

    @property
    def fails(self) -> bool:
        """Whether there can be rows without a value, such as for an overflow."""
        return any(argument.fails for argument in self.arguments)

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same for all records, whatever the parameters are."""
        return bool(self.arguments) and all(argument.is_constant for argument in self.arguments)

    def evaluate(self, rows: Rows) -> Value:
        """Return the value for each of the rows, or one scalar for all."""
        raise NotImplementedError


@dataclass(frozen=True)
class FieldValue(Node):
    """A field of the record."""

    name: str

    def evaluate(self, rows: Rows) -> Value:
        """Return the column."""
        return rows.column(self.name)


@dataclass(frozen=True)
class Constant(Node):
    """A literal. `digits` is its text if it is a number with a point, which is a DECIMAL next to decimals."""

    value: pa.Scalar
    digits: str = ""

    @property
    def is_constant(self) -> bool:
        """True."""
        return True

    def evaluate(self, rows: Rows) -> Value:  # noqa: ARG002  # the same for all
        """Return the literal."""
        return self.value


@dataclass(frozen=True)
class Parameter(Node):
    """A parameter, whose value can change between two micro-batches."""

    name: str

    def evaluate(self, rows: Rows) -> Value:
        """Return the value in force."""
        return rows.parameters[self.name]


@dataclass(frozen=True)
class Call(Node):
    """A function of Arrow's compute engine, or built from these, on the values of other nodes.

    `may_fail` is whether it raises for values without a result.
    """

    function: Callable[..., Any]
    of: tuple[Node, ...]
    may_fail: bool = False

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The arguments."""
        return self.of

    @property
    def fails(self) -> bool:
        """Whether the function or an argument may fail."""
        return self.may_fail or super().fails

    def evaluate(self, rows: Rows) -> Value:
        """Return the results of the function."""
        values = [argument.evaluate(rows) for argument in self.of]
        if self.may_fail:
            return rows.call(self.function, values, self.type)
        found: Value = self.function(*values)
        return found


@dataclass(frozen=True)
class Logic(Node):
    """Terms joined by AND or OR, from left to right: a term that can fail is evaluated only where it still matters."""

    kind: Literal["and", "or"]
    of: tuple[Node, ...]

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The terms."""
        return self.of

    def evaluate(self, rows: Rows) -> Value:
        """Return the truth value, or null if it depends on one that is null."""
        join = pc.and_kleene if self.kind == "and" else pc.or_kleene
        found = self.of[0].evaluate(rows)
        for term in self.of[1:]:
            if term.fails:
                decided = pc.equal(found, self.kind == "or")
                open_rows = np.flatnonzero(~rows.as_mask(decided))
                value = rows.spread(term.evaluate(rows.part(open_rows)), open_rows)
            else:
                value = term.evaluate(rows)
            found = join(found, value)
        return found


@dataclass(frozen=True)
class Case(Node):
    """The value of the first condition that is true, else the last value. Others are not evaluated if they can fail."""

    conditions: tuple[Node, ...]
    values: tuple[Node, ...]

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The conditions and the values."""
        return self.conditions + self.values

    def evaluate(self, rows: Rows) -> Value:
        """Return the chosen values."""
        return self._lazily(rows) if self.fails else self._at_once(rows)

    def _at_once(self, rows: Rows) -> Value:
        found = self.values[-1].evaluate(rows)
        for condition, value in zip(reversed(self.conditions), reversed(self.values[:-1]), strict=True):
            found = rows.choose(condition.evaluate(rows), value.evaluate(rows), found)
        return found

    def _lazily(self, rows: Rows) -> Value:
        left = np.arange(len(rows))
        found: Value = pa.nulls(len(rows), self.type)
        for condition, value in zip(self.conditions, self.values[:-1], strict=True):
            part = rows.part(left)
            holds = part.as_mask(condition.evaluate(part))
            found = _put(rows, found, value, left[holds])
            left = left[~holds]
        return _put(rows, found, self.values[-1], left)


def _put(rows: Rows, found: Value, node: Node, places: Any) -> Value:
    """Return values with those of a node at some rows."""
    if not len(places):
        return found
    value = rows.spread(node.evaluate(rows.part(places)), places) if node.fails else node.evaluate(rows)
    chosen = np.zeros(len(rows), bool)
    chosen[places] = True
    return pc.if_else(pa.array(chosen), value, found)


@dataclass(frozen=True)
class Try(Node):
    """The value of a node, or null where it fails."""

    of: Node

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The node."""
        return (self.of,)

    @property
    def fails(self) -> bool:
        """False: failures become null."""
        return False

    def evaluate(self, rows: Rows) -> Value:
        """Return the value or null."""
        return self.of.evaluate(Rows(rows.batch, rows.parameters, {}))
