"""State view: the state of a job in this process, as a user would see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from penstock.checkpoints.described_state import DescribedStep, describe_state
from penstock.engine.command_validation import key_array
from penstock.errors import StateError, UnknownIdError
from penstock.snapshots.text_columns import json_texts
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_index import key_values
from penstock.state.stored_runs import stored_runs
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries

__all__ = ["key_of", "values_by_key"]


def values_by_key(runner: BatchRunner, step: str) -> dict[Any, dict[str, Any]]:
    """Return the state of a step by key, sorted: the value of each state by name, as JSON values.

    Raises UnknownIdError when the job has no such step.
    """
    found: dict[Any, dict[str, Any]] = {}
    shown = _step(runner, step)
    for (node, _), stored in sorted(runner.states.items()):
        if node == shown.node:
            for rows in _tables(shown, MemoryEntries(stored)):
                found |= dict(zip(key_values(rows.column(KEY_COLUMN)), _format_values(rows), strict=True))
    return dict(sorted(found.items()))


def key_of(runner: BatchRunner, step: str, key: Any) -> Any:
    """Convert a key to the form that `values_by_key` uses. Raises StateError when it is not of the step's type."""
    kind = _step(runner, step).schema.field(KEY_COLUMN).type
    plain = msgspec.to_builtins(key) if not isinstance(key, bytes) else key
    try:
        return key_values(key_array([plain], kind))[0]
    except (ValueError, TypeError, OverflowError, pa.ArrowException, msgspec.ValidationError) as e:
        raise StateError(f"{key!r} is not a key of the step {step!r}, whose keys are {kind}: {e}.") from None


def _step(runner: BatchRunner, name: str) -> DescribedStep:
    steps = describe_state(runner.job.name, runner.plan).steps
    if name not in steps:
        raise UnknownIdError(
            f"The job {runner.job.name!r} has no step {name!r}; its steps are {', '.join(steps) or 'none'}."
        )
    return steps[name]


def _tables(step: DescribedStep, entries: MemoryEntries) -> Iterator[pa.RecordBatch]:
    for run in stored_runs(step.schema, entries):
        for _, table in sorted(run.items()):
            yield table.all_rows()


def _format_values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    names = [name for name in rows.schema.names if name != KEY_COLUMN and not name.startswith(("__", "@"))]
    texts = [json_texts(rows.column(name)).to_pylist() for name in names]
    columns = [[msgspec.json.decode(text) for text in column] for column in texts]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * rows.num_rows
