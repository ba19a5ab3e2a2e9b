"""Answers: the result of a query, with the micro-batch after which it read the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.snapshots.table_formats import json_rows

__all__ = ["Answer", "AnswerColumn", "AnswerContent"]


@dataclass(frozen=True)
class AnswerColumn:
    """A column of an answer, with its Arrow type."""

    name: str
    type: str


@dataclass(frozen=True)
class AnswerContent:
    """An answer as JSON values: rows by name of the column."""

    batch: int
    columns: tuple[AnswerColumn, ...]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """The rows of an answer, and the micro-batch after which the state was read."""

    rows: pa.Table
    batch: int

    def content(self) -> AnswerContent:
        """Return the answer as JSON values."""
        return AnswerContent(
            self.batch,
            tuple(AnswerColumn(field.name, str(field.type)) for field in self.rows.schema),
            [row for batch in self.rows.to_batches() for row in json_rows(batch)]
            if self.rows.columns
            else [],
        )
