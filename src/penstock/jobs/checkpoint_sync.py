"""Checkpoint sync: before an output of a micro-batch becomes visible, all that a replay of it needs is on disk.

Spark writes its logs and its state without waiting for the disk, while sinks make sure that their outputs are there.
After a power loss outputs could be further than the checkpoint. So whatever is new in Spark's part is synced when a
micro-batch begins, while its tasks work: where its streams end (offsets), the commit of the micro-batch before, and the
state that it reads. Then the mark in `begun.json` says, durably too, that outputs of it may exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.durable import sync_file, sync_file_system, sync_folder
from penstock.errors import CheckpointError

__all__ = ["CheckpointSync", "NewFiles"]

# The disk writes what several threads wait for at once.
_THREADS: Final = 8
_SPARK: Final = ("metadata", ".metadata.crc", "offsets", "commits", "state")


class NewFiles:
    """Which files have appeared in Spark's logs and its state since one looked last."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._known: dict[str, set[tuple[str, int]]] = {}

    def look(self) -> dict[Path, list[Path]]:
        """The folders in which something is new, each with its new files; all of them at the first look."""
        found: dict[str, set[tuple[str, int]]] = {}
        new: dict[Path, list[Path]] = {}
        for path, files, folders in self._folders():
            found[path] = files | folders
            known = self._known.get(path, set())
            if not found[path] <= known:
                new[Path(path)] = [Path(path, name) for name, _ in sorted(files - known)]
        self._known = found
        return new

    def _folders(self) -> Iterator[tuple[str, set[tuple[str, int]], set[tuple[str, int]]]]:
        """Each folder with its files and folders, by name and inode: what takes a file's place is new, too."""
        waiting = [str(self._folder)]
        while waiting:
            path = waiting.pop()
            files, folders = set(), set()
            is_top = path == str(self._folder)
            # Spark clears away folders, too, such as that of a state's old tables.
            with suppress(FileNotFoundError), os.scandir(path) as entries:
                for entry in entries:
                    if is_top and entry.name not in _SPARK:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.add((entry.name, entry.inode()))
                        waiting.append(entry.path)
                    elif not entry.name.endswith(".tmp"):
                        files.add((entry.name, entry.inode()))
            yield path, files, folders


class CheckpointSync:
    """Syncs one run's checkpoint, in threads of its own.

    Args:
        folder: Spark's part of the checkpoint.
        mark: notes durably that outputs of a micro-batch may exist from now on; called when all is synced.

    """

    def __init__(self, folder: Path, mark: Callable[[int], None]) -> None:
        self._folder: Final = folder
        self._mark: Final = mark
        self._new: Final = NewFiles(folder)
        self._is_first = True
        self._batch_id: int | None = None
        self._done: Future[None] | None = None
        self._in_order: Final = ThreadPoolExecutor(1, "checkpoint-sync")
        self._files: Final = ThreadPoolExecutor(_THREADS, "checkpoint-sync-file")

    def begin(self, batch_id: int) -> None:
        """Begin to sync what a replay of a micro-batch needs; Spark has planned it."""
        self._batch_id = batch_id
        self._done = self._in_order.submit(self._run, batch_id)

    def wait(self, batch_id: int) -> None:
        """Wait until outputs of a micro-batch may become visible. Raises CheckpointError when the disk fails."""
        if self._done is None or self._batch_id != batch_id:
            self.begin(batch_id)
        assert self._done is not None
        self._done.result()

    def close(self) -> None:
        """End the threads; what was begun comes to its end."""
        self._in_order.shutdown()
        self._files.shutdown()

    def _run(self, batch_id: int) -> None:
        try:
            if self._is_first:
                # Nobody knows what runs before this one have left unsynced.
                self._new.look()
                sync_file_system(self._folder)
                self._is_first = False
            else:
                self.sync_new()
            self._mark(batch_id)
        except OSError as e:
            raise CheckpointError(
                f"The checkpoint {self._folder} cannot be brought to disk ({e}), so micro-batch {batch_id} was not "
                "committed. See to the disk, and start the job again; it goes on where it was."
            ) from e

    def sync_new(self) -> None:
        """Sync the files that have appeared since the last time, and then their names."""
        new = self._new.look()
        list(self._files.map(_sync_if_there, [path for paths in new.values() for path in paths]))
        list(self._files.map(_sync_folder_if_there, new))


def _sync_if_there(path: Path) -> None:
    # Spark clears away, at any time, what no micro-batch needs that can still be done again.
    with suppress(FileNotFoundError):
        sync_file(path)


def _sync_folder_if_there(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_folder(path)
