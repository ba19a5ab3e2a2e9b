"""Reads the records of a journal as a job would."""

from __future__ import annotations

from pathlib import Path

from penstock.sources.journal import JournalLog

__all__ = ["journaled"]


def journaled(folder: Path) -> list[bytes]:
    """Return all records of a journal, in order."""
    log = JournalLog(folder)
    splits = log.splits(0, log.latest(0, limited=False), 1)
    chunks = [chunk for split in splits for chunk in log.read([split], None)]  # type: ignore[arg-type]
    return [record for chunk in chunks for record in chunk.raw.to_pylist()]  # type: ignore[union-attr]
