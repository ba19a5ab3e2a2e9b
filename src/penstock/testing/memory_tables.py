"""Memory tables: the tables outside in which the steps of a test's job look records up, as rows in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.errors import ExternalSystemError, SchemaError
from penstock.joins.lookup_source import BETWEEN_ROWS, LookupKeys, LookupSource, Rows
from penstock.records.types import RecordType
from penstock.records.wire_formats import JsonFormat
from penstock.testing.batch_runner import BatchRunner

__all__ = ["MemoryTable", "memory_tables"]


class MemoryTable:
    """The rows of a table in which a job looks records up. A test changes them between micro-batches.

    Attributes:
        rows: the rows, as dicts or objects with the fields of the table.
        queries: the keys that the job has asked for, a list for each query.
        is_away: whether the table does not answer, which ends the run of a job.

    """

    def __init__(self, name: str, record_type: RecordType) -> None:
        self.name: Final = name
        self.record_type: Final = record_type
        self.rows: list[Any] = []
        self.queries: list[list[tuple[Any, ...]]] = []
        self.is_away = False

    def find(self, fields: Sequence[str], keys: LookupKeys) -> list[Rows]:
        """Return the rows of each key. Raises ExternalSystemError, and SchemaError for a row of another type."""
        asked = list(zip(*keys.columns, strict=True))
        self.queries.append(asked)
        if self.is_away:
            raise ExternalSystemError(f"The table {self.name!r} does not answer.")
        found: dict[tuple[Any, ...], list[str]] = {}
        for row, text in zip(*self._records(), strict=True):
            found.setdefault(tuple(getattr(row, field) for field in fields), []).append(text)
        return [BETWEEN_ROWS.join(found.get(key, ())) for key in asked]

    def _records(self) -> tuple[list[Any], list[str]]:
        kind = self.record_type
        try:
            records = [
                msgspec.convert(row, kind.python_class) if isinstance(row, dict) else row for row in self.rows
            ]
            lines = JsonFormat(kind, allow_nan=True).encode(kind.batch(records))
        except (msgspec.ValidationError, SchemaError) as e:
            raise SchemaError(
                f"A row of the table {self.name!r}, which has {kind!r}, does not fit: {e}."
            ) from None
        return records, [line.decode() for line in lines.to_pylist()]


@dataclasses.dataclass(frozen=True)
class _MemorySource(LookupSource):
    held: MemoryTable

    def check(self, fields: Sequence[str]) -> None:
        """Do nothing: it answers."""

    def find(self, fields: Sequence[str], keys: LookupKeys) -> list[Rows]:
        """Return the rows that each key has now."""
        return self.held.find(fields, keys)


def memory_tables(runner: BatchRunner) -> dict[str, MemoryTable]:
    """Give a runner a table in memory for each table of its job, and return them by name. Their rows are not cached."""
    tables = {name: MemoryTable(name, kind) for name, kind in runner.plan.graph.lookups.items()}
    sources = {
        name: _MemorySource(name, f"memory:{id(table)}", 0, 0, table) for name, table in tables.items()
    }
    runner.plan = dataclasses.replace(runner.plan, lookups=sources)
    return tables
