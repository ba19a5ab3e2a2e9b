"""Source files: what a checkpoint keeps of its sources, copied into a savepoint beside the running job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import IO, Any, Final

from penstock.errors import CheckpointError
from penstock.snapshots.manifest import FileEntry
from penstock.snapshots.snapshot_writer import write_file
from penstock.snapshots.stores import Store
from penstock.sources.journal import journal_begin
from penstock.sources.topic_identity import TOPIC_FILES

__all__ = [
    "OWN_FOLDERS",
    "OvertakenError",
    "copy_own_files",
    "copy_topic_ids",
    "is_beginning",
    "spark_beginnings",
]

SOURCES: Final = "sources"
FETCHED: Final = "fetched"
OWN_FOLDERS: Final = (SOURCES, FETCHED)
"""What a checkpoint keeps besides states, which a savepoint has as well."""


def is_beginning(path: str | PurePath) -> bool:
    """Whether a path in a checkpoint is, or is in, a folder where Spark notes at which offsets a Kafka stream begins.

    Spark numbers those folders by stream. What it finds there goes before the offsets that it is given, so it is good
    for the first micro-batch of its own log alone, and no part of what another log begins with.

    >>> is_beginning("sources/0/0"), is_beginning("sources/readings.topic")
    (True, False)
    """
    parts = PurePath(path).parts
    return len(parts) > 1 and parts[0] == SOURCES and parts[1].isdecimal()


def spark_beginnings(folder: Path) -> list[Path]:
    """The folders of a checkpoint in which Spark notes where Kafka streams begin."""
    found = (folder / SOURCES).iterdir() if (folder / SOURCES).is_dir() else ()
    return sorted(path for path in found if is_beginning(path.relative_to(folder)))


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
            paths = [path for path in _paths(folder / SOURCES) if not is_beginning(path.relative_to(folder))]
            opened = [(path, stack.enter_context(path.open("rb"))) for path in paths]
        except FileNotFoundError as e:
            raise _overtaken(folder) from e
        _check_needed(folder, positions, opened)
        written = [write_file(store, str(path.relative_to(folder)), file.read()) for path, file in opened]
    for path in _paths(folder / FETCHED):
        with contextlib.suppress(FileNotFoundError):
            written.append(write_file(store, str(path.relative_to(folder)), path.read_bytes()))
    return tuple(written)


def copy_topic_ids(folder: Path, store: Store) -> tuple[FileEntry, ...]:
    """Copy what says of which Kafka topics the positions are: of the sources' files a dump needs no others."""
    paths = sorted((folder / SOURCES).glob(TOPIC_FILES))
    return tuple(write_file(store, str(path.relative_to(folder)), path.read_bytes()) for path in paths)


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
