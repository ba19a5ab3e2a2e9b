"""Checkpoint sync: bring all that a replay of a micro-batch needs to disk before an output of it becomes visible.

Spark writes its logs and its state without waiting for the disk, while sinks sync their outputs. After a power loss,
outputs could be ahead of the checkpoint. So when a micro-batch begins, this syncs what is new in Spark's part while the
tasks work: the ends of the streams (offsets), the commit of the previous micro-batch, and the state that it reads. Then
the mark in `begun.json`, also durable, says that outputs of the micro-batch may exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.base.durable import sync_file, sync_file_system, sync_folder
from penstock.errors import CheckpointError

__all__ = ["CheckpointSync", "NewFiles"]

# The disk serves the syncs of several threads at once.
_THREADS: Final = 8
_SPARK: Final = frozenset(("metadata", ".metadata.crc", "offsets", "commits", "state"))


@dataclass
class _Folder:
    """The contents of a folder at the last look."""

    names: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)


class NewFiles:
    """Finds the files that have appeared in Spark's logs and state since the last look.

    Spark uses each name only once: it numbers its logs, and the files of its state have ids.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = str(folder)
        self._known: Final[dict[str, _Folder]] = {}

    def look(self) -> dict[Path, list[Path]]:
        """Return the folders with new entries, each with its new files; the first look returns all."""
        new: dict[Path, list[Path]] = {}
        waiting = [self._folder]
        while waiting:
            path = waiting.pop()
            known = self._known.setdefault(path, _Folder())
            there = self._names(path)
            fresh = there - known.names
            # Only new names, since few of thousands are new.
            folders = {name for name in fresh if os.path.isdir(os.path.join(path, name))}  # noqa: PTH112, PTH118  # paths as text are quicker, and there are thousands
            known.folders = (known.folders | folders) & there
            known.names = there
            waiting += (os.path.join(path, name) for name in known.folders)  # noqa: PTH118  # paths as text are quicker, and there are thousands
            if fresh:
                new[Path(path)] = [Path(path, name) for name in sorted(fresh - folders)]
        return new

    def _names(self, path: str) -> set[str]:
        try:
            names = os.listdir(path)  # noqa: PTH208  # paths as text are quicker, and there are thousands
        except FileNotFoundError:
            # Spark also removes folders, such as those of a state's old tables.
            return set()
        if path == self._folder:
            return {name for name in names if name in _SPARK}
        return {name for name in names if not name.endswith(".tmp")}


class CheckpointSync:
    """Syncs the checkpoint of one run, in its own threads.

    Args:
        folder: Spark's part of the checkpoint.
        mark: records durably that outputs of a micro-batch may exist from now on; called when all is synced.
        save: brings the checkpoint to its home, if that is not this disk, which then need not have it.

    """

    def __init__(
        self, folder: Path, mark: Callable[[int], None], save: Callable[[], None] | None = None
    ) -> None:
        self._folder: Final = folder
        self._mark: Final = mark
        self._save: Final = save
        self._new: Final = NewFiles(folder)
        self._is_first = True
        self._batch_id: int | None = None
        self._done: Future[None] | None = None
        self._in_order: Final = ThreadPoolExecutor(1, "checkpoint-sync")
        self._files: Final = ThreadPoolExecutor(_THREADS, "checkpoint-sync-file")

    def begin(self, batch_id: int) -> None:
        """Start to sync what a replay of a micro-batch needs. Spark must have planned it."""
        self._batch_id = batch_id
        self._done = self._in_order.submit(self._run, batch_id)

    def wait(self, batch_id: int) -> None:
        """Wait until outputs of a micro-batch may become visible. Raises CheckpointError when the disk fails."""
        if self._done is None or self._batch_id != batch_id:
            self.begin(batch_id)
        assert self._done is not None
        self._done.result()

    def close(self) -> None:
        """End the threads, after completing what has started."""
        self._in_order.shutdown()
        self._files.shutdown()

    def _run(self, batch_id: int) -> None:
        if self._save is not None:
            self._mark(batch_id)
            self._save()
            return
        try:
            if self._is_first:
                # Earlier runs may have left anything unsynced.
                self._new.look()
                sync_file_system(self._folder)
                self._is_first = False
            else:
                self.sync_new()
            self._mark(batch_id)
        except OSError as e:
            raise CheckpointError(
                f"The checkpoint {self._folder} cannot be synced to disk ({e}), so micro-batch {batch_id} was not "
                "committed. Fix the disk, and start the job again; it resumes where it was."
            ) from e

    def sync_new(self) -> None:
        """Sync the files that have appeared since the last time, and then their directory entries."""
        new = self._new.look()
        list(self._files.map(_sync_if_there, [path for paths in new.values() for path in paths]))
        list(self._files.map(_sync_folder_if_there, new))


def _sync_if_there(path: Path) -> None:
    # Spark may at any time remove files that only replays of older micro-batches would need.
    with suppress(FileNotFoundError):
        sync_file(path)


def _sync_folder_if_there(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_folder(path)
