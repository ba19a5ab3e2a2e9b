"""What integration tests share: files of JSON Lines, and what runs a job."""

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
    """A JSON Lines file, which appears as a whole; strings are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    hidden = folder / f".{name}.tmp"
    hidden.write_text("".join(line + "\n" for line in lines))
    hidden.rename(folder / name)


def read_lines(folder: Path) -> list[Any]:
    """All records of a folder of JSON Lines, files in name order."""
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def kept_cuts(checkpoint: Path) -> list[Cut]:
    """The cuts of the micro-batches that the checkpoint of a job that began without state still has."""
    return [read_cut(checkpoint, number) for number in batch_numbers(checkpoint / "offsets")]
