"""Source files: what a checkpoint keeps of its sources, copied into a savepoint beside the running job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from penstock.errors import CheckpointError
from penstock.snapshots.manifest import FileEntry
from penstock.snapshots.stores import Store
from penstock.snapshots.writing import write_file
from penstock.sources.journal import journal_begin

__all__ = ["OWN_FOLDERS", "OvertakenError", "copy_own_files"]

SOURCES: Final = "sources"
FETCHED: Final = "fetched"
OWN_FOLDERS: Final = (SOURCES, FETCHED)
"""What a checkpoint keeps besides states, which a savepoint has as well."""


class OvertakenError(CheckpointError):
    """The job has gone on meanwhile, and its sources have forgotten what a micro-batch still needs."""

    retryable = True


def copy_own_files(folder: Path, positions: dict[str, Any], store: Store) -> tuple[FileEntry, ...]:
    """Copy the files of the sources, which say what the positions of a micro-batch mean.

    A running job deletes segments of its journals that it has read: all are opened first, which takes a moment and
    keeps them. Raises OvertakenError, and has written nothing then, when one of those that are needed was gone before.
    What commands have named is deleted only when no micro-batch that is kept needs it.

    A journal's mark comes before its segments: what is written meanwhile is then behind the mark, where a journal that
    is opened again looks for itself.
    """
    with contextlib.ExitStack() as stack:
        try:
            opened = [(path, stack.enter_context(path.open("rb"))) for path in _paths(folder / SOURCES)]
        except FileNotFoundError as e:
            raise _overtaken(folder) from e
        _check_needed(folder, positions, opened)
        written = [write_file(store, str(path.relative_to(folder)), file.read()) for path, file in opened]
    for path in _paths(folder / FETCHED):
        with contextlib.suppress(FileNotFoundError):
            written.append(write_file(store, str(path.relative_to(folder)), path.read_bytes()))
    return tuple(written)


def _paths(folder: Path) -> list[Path]:
    # What is about to take a file's place has a hidden name, and may be gone in a moment.
    paths = [path for path in folder.rglob("[!.]*") if path.is_file()]
    return sorted(paths, key=lambda path: (path.name != "mark", str(path)))


def _check_needed(folder: Path, positions: dict[str, Any], opened: Sequence[tuple[Path, IO[bytes]]]) -> None:
    """Whether the journals that were opened go back to where their streams stand."""
    journals: dict[str, list[Path]] = {}
    for path, _ in opened:
        if path.parent.suffix == ".journal":
            journals.setdefault(path.parent.stem, []).append(path)
    for stream, paths in journals.items():
        position = (positions.get(stream) or {}).get("position", 0)
        begin = journal_begin(paths)
        if begin is not None and begin > position:
            raise _overtaken(folder)


def _overtaken(folder: Path) -> OvertakenError:
    return OvertakenError(
        f"The job in {folder} goes on so quickly that its sources forget what the savepoint needs before it is copied. "
        "Take the savepoint again, or stop the job with one: penstock stop --savepoint."
    )
