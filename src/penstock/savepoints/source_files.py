"""Source files: copy the files that a checkpoint keeps for its sources into a savepoint, while the job runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import IO, Any, Final

from penstock.errors import CheckpointError
from penstock.models.library import MODELS
from penstock.snapshots.manifest import FileEntry
from penstock.snapshots.snapshot_writer import write_file
from penstock.snapshots.stores import Store
from penstock.sources.journal import journal_begin
from penstock.sources.stored_topics import TOPIC_FILES

__all__ = [
    "OWN_FOLDERS",
    "OvertakenError",
    "copy_models",
    "copy_own_files",
    "copy_topic_ids",
    "is_beginning",
    "spark_beginnings",
]

SOURCES: Final = "sources"
FETCHED: Final = "fetched"
OWN_FOLDERS: Final = (SOURCES, FETCHED, MODELS)
"""The folders that a checkpoint keeps besides states, which a savepoint includes."""


def is_beginning(path: str | PurePath) -> bool:
    """Return whether a path in a checkpoint belongs to a folder where Spark notes the first offsets of a Kafka stream.

    Spark numbers these folders by stream. They take precedence over the offsets that Spark is given, so they are valid
    only for the first micro-batch of their own log, and another log must not start with them.

    >>> is_beginning("sources/0/0"), is_beginning("sources/readings.topic")
    (True, False)
    """
    parts = PurePath(path).parts
    return len(parts) > 1 and parts[0] == SOURCES and parts[1].isdecimal()


def spark_beginnings(folder: Path) -> list[Path]:
    """Return the folders of a checkpoint in which Spark notes where Kafka streams begin."""
    found = (folder / SOURCES).iterdir() if (folder / SOURCES).is_dir() else ()
    return sorted(path for path in found if is_beginning(path.relative_to(folder)))


class OvertakenError(CheckpointError):
    """The error for a job that has deleted source files which a micro-batch still needs, before they were copied."""

    retryable = True


def copy_own_files(folder: Path, positions: dict[str, Any], store: Store) -> tuple[FileEntry, ...]:
    """Copy the files of the sources, which the positions of a micro-batch refer to.

    A running job deletes segments of its journals that it has read. So this first opens all files, which takes a moment
    and keeps their contents. Raises OvertakenError, without having written anything, when a needed one was deleted
    before. Files that commands have fetched are deleted only when no kept micro-batch needs them.

    A journal's mark is copied before its segments: what is written meanwhile is then after the mark, where a reopened
    journal checks for itself.
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
    return (*written, *copy_models(folder, store))


def copy_models(folder: Path, store: Store) -> tuple[FileEntry, ...]:
    """Copy the models that the versions in the state refer to, with the findings on them. They never change.

    A content that vanishes meanwhile belongs to no version in a micro-batch that the checkpoint retains.
    """
    written = []
    for path in _paths(folder / MODELS):
        with contextlib.suppress(FileNotFoundError):
            written.append(write_file(store, str(path.relative_to(folder)), path.read_bytes()))
    return tuple(written)


def copy_topic_ids(folder: Path, store: Store) -> tuple[FileEntry, ...]:
    """Copy the identities of the Kafka topics that the positions refer to. A dump needs no other source files."""
    paths = sorted((folder / SOURCES).glob(TOPIC_FILES))
    return tuple(write_file(store, str(path.relative_to(folder)), path.read_bytes()) for path in paths)


def _paths(folder: Path) -> list[Path]:
    # A file that is about to replace another has a hidden name, and may vanish at any moment.
    paths = [path for path in folder.rglob("[!.]*") if path.is_file()]
    return sorted(paths, key=lambda path: (path.name != "mark", str(path)))


def _check_needed(folder: Path, positions: dict[str, Any], opened: Sequence[tuple[Path, IO[bytes]]]) -> None:
    """Raise OvertakenError unless the opened journals go back to the positions of their streams."""
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
        f"The job in {folder} is so fast that its sources delete what the savepoint needs before it is copied. Take "
        "the savepoint again, or stop the job with one: penstock stop --savepoint."
    )
