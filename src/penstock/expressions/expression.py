"""Expressions: checked ones, as they travel to the workers, and their evaluation on a batch of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expressions.evaluation import Rows
from penstock.expressions.nodes import FieldValue, Logic, Node
from penstock.records.types import RecordType

__all__ = ["Condition", "Selection"]


@dataclass(frozen=True)
class Condition:
    """A condition on records. `parameters` are those that it uses."""

    text: str
    node: Node
    parameters: tuple[str, ...]

    @property
    def sql(self) -> str:
        """The condition as it was written."""
        return self.text

    def rows(
        self, batch: pa.RecordBatch, parameters: Mapping[str, pa.Scalar]
    ) -> tuple[npt.NDArray[np.bool_], dict[int, str]]:
        """Return for which rows the condition is true, and why others have no value."""
        found, failures = self.true_rows(batch, parameters)
        mask = np.zeros(batch.num_rows, bool)
        mask[found] = True
        return mask, failures

    def true_rows(
        self, batch: pa.RecordBatch, parameters: Mapping[str, pa.Scalar]
    ) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
        """Return the numbers of the rows for which the condition is true, and why others have no value."""
        failures: dict[int, str] = {}
        rows = Rows(batch, parameters, failures)
        if self.node.fails:
            found = np.flatnonzero(rows.as_mask(self.node.evaluate(rows)))
        else:
            first, *others = _conjuncts(self.node)
            found = np.flatnonzero(rows.as_mask(first.evaluate(rows)))
            for term in others:
                found = _narrow(rows, found, term)
        return found, _sort(failures, self.text)


@dataclass(frozen=True)
class Selection:
    """The fields of new records, each with its expression. `texts` are the expressions as written."""

    texts: tuple[str, ...]
    nodes: tuple[Node, ...]
    record_type: RecordType
    parameters: tuple[str, ...]

    @property
    def sql(self) -> str:
        """The expressions as they were written, with commas."""
        return ", ".join(dict.fromkeys(self.texts))

    def columns(
        self, batch: pa.RecordBatch, parameters: Mapping[str, pa.Scalar]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the new records for all rows, and why some rows have no value; these must not be used."""
        failures: dict[int, str] = {}
        columns: list[pa.Array] = []
        for text, node in zip(self.texts, self.nodes, strict=True):
            found: dict[int, str] = {}
            rows = Rows(batch, parameters, found)
            columns.append(rows.array(node.evaluate(rows)))
            for row, reason in _sort(found, text).items():
                failures.setdefault(row, reason)
        made = pa.RecordBatch.from_arrays(columns, schema=self.record_type.schema)
        # Sums of times can leave the years that Python has.
        reasons = self.record_type.missing(made, allow_nan=True)
        if reasons is not None:
            for row in np.flatnonzero(reasons != "").tolist():
                failures.setdefault(row, f"the selection has no value: {reasons[row]}")
        return made, failures

    @property
    def unchanged(self) -> dict[str, str]:
        """The names of the fields that are copied unchanged, by their earlier names."""
        copied = zip(self.nodes, self.record_type.fields, strict=True)
        return {node.name: field.name for node, field in copied if isinstance(node, FieldValue)}


def _conjuncts(node: Node) -> list[Node]:
    if isinstance(node, Logic) and node.kind == "and":
        return [term for one in node.of for term in _conjuncts(one)]
    return [node]


def _narrow(rows: Rows, found: npt.NDArray[np.int64], term: Node) -> npt.NDArray[np.int64]:
    """Return those of the found rows for which a term is true too. A few rows are evaluated alone."""
    names = sorted(_fields_of(term))
    if not names or 2 * len(found) > len(rows):
        return found[rows.as_mask(term.evaluate(rows))[found]]
    part = Rows(rows.batch.select(names), rows.parameters, rows.failures).part(found)
    return found[part.as_mask(term.evaluate(part))]


def _fields_of(node: Node) -> set[str]:
    if isinstance(node, FieldValue):
        return {node.name}
    return set().union(*map(_fields_of, node.arguments))


def _sort(failures: Mapping[int, str], text: str) -> dict[int, str]:
    shown = text if len(text) <= 200 else f"{text[:199]}…"
    return {row: f"the expression {shown!r} has no value: {failures[row]}" for row in sorted(failures)}
