"""Shared by integration tests: JSON Lines files, and running a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from penstock.jobs.runner import RunSummary
from penstock.runtime.cuts import Cut, batch_numbers, read_cut

RunJob: TypeAlias = Callable[..., RunSummary]
"""Runs a job of the test's own module; the fixture `run_job` gives it."""


def write_lines(folder: Path, name: str, records: Iterable[Any]) -> None:
    """Write a JSON Lines file atomically; strings are written unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    hidden = folder / f".{name}.tmp"
    hidden.write_text("".join(line + "\n" for line in lines))
    hidden.rename(folder / name)


def read_lines(folder: Path) -> list[Any]:
    """Return all records of a folder of JSON Lines, files in order of name."""
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def kept_cuts(checkpoint: Path) -> list[Cut]:
    """Return the cuts of the micro-batches that a checkpoint still has; its job began without state."""
    return [read_cut(checkpoint, number) for number in batch_numbers(checkpoint / "offsets")]
