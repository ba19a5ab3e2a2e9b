"""Unread files: find the files that wait in the folder of a stream, by the list of found files and the newest cut."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.runtime.cuts import newest_cut
from penstock.sources.found_files import FoundFiles

__all__ = ["found_files", "list_unread_files"]


def found_files(checkpoint: Path, stream: str) -> FoundFiles:
    """Open the list of the files that a stream has found."""
    return FoundFiles(str(checkpoint / "sources" / f"{stream}.files"))


def list_unread_files(checkpoint: Path, stream: str, folder: str) -> list[str]:
    """List the names in a folder of files that no committed micro-batch has read; none without the folder."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith((".", "_"))]  # noqa: PTH208  # names
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = found_files(checkpoint, stream)
    cut = newest_cut(checkpoint)
    end = 0 if cut is None else cut.ends.get(stream, 0)
    # A stream that was bound to Kafka before has partitions there instead of a position.
    read = max(found.first, end) if isinstance(end, int) else found.first
    waiting = {file.name for file in found.between(read, found.end) if file.directory == folder}
    return [*found.unknown(folder, names), *(name for name in names if name in waiting)]
