"""Stored checkpoint: a checkpoint whose home is an object store, while a run works in a folder of its machine.

The content of the folder counts only once the store has it too. A run saves it there before any output of a micro-batch
may become visible, at the moment when other runs wait for their disk. So losing the machine, with its disk, is like
losing its power: the job can continue from what the store has, and no output depends on anything else.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.spark_checkpoint import state_versions
from penstock.checkpoints.state_place import STATE, StatePlace, state_place
from penstock.checkpoints.stored_entries import Piece, StoredFile, digest_of
from penstock.checkpoints.stored_home import note_home, place_in, place_of_home
from penstock.checkpoints.stored_log import ObjectsOfLog, StoredLog
from penstock.checkpoints.working_folder import Change, Changes, WorkingFolder
from penstock.errors import (
    CheckpointError,
    CheckpointMissingError,
    ExternalSystemError,
    FencedError,
    PenstockError,
)
from penstock.objects.object_folder import AT_WORK, IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Place
from penstock.objects.objects import OBJECT_SCHEMES
from penstock.runtime.cuts import newest_batch

__all__ = [
    "CAPTURED",
    "SHELVES",
    "StoredCheckpoint",
    "StoredOwnership",
    "delete_checkpoint",
    "is_stored",
    "working_folder",
]

SHELVES: Final = "library"
"""The prefix of the shelves, one for each run, on which driver and tasks leave models for each other."""
_ABOUT: Final = "about.json"
_FORMAT: Final = 1
CAPTURED: Final = "rescaling"
"""The prefix of what a rescaling captures, where tasks share only the store."""
# Smaller files travel in the entry; together they are at most this large.
_PACKED_BYTES: Final = 8 << 20
_AT_ONCE: Final = 4
_BETWEEN_LOOKS_S: Final = 3.0


class _About(msgspec.Struct, frozen=True):
    """What a prefix holds: a checkpoint in this format, whose runs work in a folder of this path."""

    checkpoint: int
    folder: str


def is_stored(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint is on an object store or HDFS.

    >>> is_stored("s3://bucket/rooms"), is_stored("hdfs://namenode:8020/rooms"), is_stored("rooms")
    (True, True, False)
    """
    scheme, separator, _ = str(checkpoint).partition("://")
    return bool(separator) and scheme in OBJECT_SCHEMES


def working_folder(uri: str) -> Path:
    """Return the folder in which a run with a checkpoint on an object store works; creates nothing."""
    digest = hashlib.sha256(place_of_home(uri).shown.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()).absolute() / f"penstock-checkpoint-{digest}"


def delete_checkpoint(uri: str) -> None:
    """Delete all objects of a checkpoint that no run uses. Raises ExternalSystemError if the store does not answer."""
    objects = ObjectFolder(place_of_home(uri), {}, IN_HASTE)
    names = [one.name for one in objects.objects()]
    # The rest that an interrupted deletion leaves has no description, so it is not a checkpoint.
    objects.remove(sorted(names, key=lambda name: name != _ABOUT))


class StoredCheckpoint:
    """One run's view of a checkpoint on an object store."""

    def __init__(self, objects: ObjectsOfLog, shown: str, folder: Path) -> None:
        self.shown: Final = shown
        self._objects: Final = objects
        self._files: Final = WorkingFolder(folder)
        self._log: Final = StoredLog(objects, shown, str(folder))
        self._lock: Final = threading.Lock()
        self._looked_s = time.monotonic()
        self._lost: FencedError | None = None
        self.shelf_id: Final = uuid.uuid4().hex[:16]
        self._is_taken = False
        self._has_failed = False

    @classmethod
    def at(cls, uri: str) -> StoredCheckpoint:
        """Return the checkpoint at a URI, and make its working folder. Raises CheckpointError if that is not ours."""
        place = place_of_home(uri)
        folder = working_folder(uri)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise CheckpointError(
                f"{folder}, in which the job would work, belongs to somebody else. Name another folder for temporary "
                "files in TMPDIR."
            )
        return cls(ObjectFolder(place, {}, AT_WORK), place.shown.rstrip("/"), folder)

    @property
    def folder(self) -> Path:
        """The folder on this machine."""
        return self._files.path

    @contextmanager
    def opened(self, *, must_continue: bool = False) -> Iterator[None]:
        """Open the checkpoint for a run, and save its last changes at the end, unless another run has taken over.

        Raises what `open` and `save` raise. If the body fails, its error counts.
        """
        self.open(must_continue=must_continue)
        try:
            yield
        except BaseException:
            if self._is_taken:
                with suppress(PenstockError):
                    self.save()
            raise
        if self._is_taken:
            self.save()

    def open(self, *, must_continue: bool = False) -> None:
        """Fill the working folder, which must be locked, with what the store has.

        Raises CheckpointError when the checkpoint cannot be used, CheckpointMissingError when there is none although it
        must be, and CheckpointInUseError when another run changes it meanwhile.
        """
        self._check_about()
        self._log.read()
        if must_continue and self._log.newest is None:
            raise CheckpointMissingError(
                f"The job has run with the checkpoint {self.shown}, and there is nothing of it: it would begin from "
                "nothing. Correct --checkpoint, or put the objects back from a copy."
            )
        self._files.fill(self._log.table.files, self._log.content)
        note_home(self.folder, self.shown)

    def _check_about(self) -> None:
        """Check that a checkpoint of this format is here, or nothing, and that its runs work in the same folder."""
        data = self._objects.find(_ABOUT)
        if data is None:
            return
        try:
            about = msgspec.json.decode(data, type=_About)
        except msgspec.MsgspecError as e:
            raise CheckpointError(
                f"{self.shown}/{_ABOUT} is not of a checkpoint ({e}). Choose an empty prefix with --checkpoint."
            ) from e
        if about.checkpoint != _FORMAT:
            raise CheckpointError(
                f"The checkpoint {self.shown} has the format {about.checkpoint}, and this penstock writes {_FORMAT}. "
                "Use the penstock that has written it, or another prefix."
            )
        if about.folder != str(self.folder):
            raise CheckpointError(
                f"Runs with the checkpoint {self.shown} work in {about.folder}, whose path is in it, and this one "
                f"would work in {self.folder}. Set TMPDIR={Path(about.folder).parent}, and start the job again."
            )

    def take(self) -> None:
        """Take over the checkpoint for this run.

        Raises CheckpointInUseError when another run has changed it since `open`, and CheckpointError when the store
        replaces an object that is to be created only once.
        """
        about = msgspec.json.encode(_About(_FORMAT, str(self.folder)))
        with self._lock:
            self._objects.create(_ABOUT, about)
            if self._objects.create(_ABOUT, about):
                raise CheckpointError(
                    f"The store of {self.shown} replaces objects that are to be created only once (If-None-Match), so "
                    "two runs could not be told apart. Use another store, or a folder."
                )
            self._log.take()
            self._is_taken = True

    def place_of(self, name: str) -> Place:
        """Return the place of an object, or a prefix, of the checkpoint."""
        return place_in(place_of_home(self.shown), name)

    def stored_files(self, folder: str) -> dict[str, StoredFile]:
        """Return the files in a folder of the checkpoint that the store has, by their paths."""
        with self._lock:
            return {
                path: file
                for path, file in self._log.table.files.items()
                if path.startswith(f"{folder}/") and not path.endswith("/")
            }

    def check_state(self, place: StatePlace) -> None:
        """Raise CheckpointError unless the store has the state of the newest commit, which tasks have written there."""
        newest = newest_batch(self.folder / "commits")
        if newest < 0:
            return
        there = set(self._objects.names(place.prefix))
        for operator, partitions in state_versions(
            self.folder / "commits" / str(newest), is_newest=True
        ).items():
            for number, ids in enumerate(partitions):
                name = f"{operator}/{number}/{newest + 1}_{ids[0]}"
                if there.isdisjoint((f"{name}.changelog", f"{name}.zip")):
                    raise CheckpointError(
                        f"The checkpoint is damaged: {self.shown}/{place.prefix}/{name}.changelog is missing. Restore "
                        "the objects from a copy, or use another prefix."
                    )

    def remove_left_behind(self) -> None:
        """Remove what earlier runs have left beside the log, for which no entry speaks.

        It is the state in places that no longer count, what rescalings that were broken off have captured, and the
        shelves of other runs.
        """
        place = state_place(self.folder)
        # They only cost space.
        with suppress(ExternalSystemError):
            self._objects.remove_unfinished()
            left = self._others(SHELVES, self.shelf_id)
            if place is not None:
                left += [
                    *self._others(STATE, place.id),
                    *(f"{CAPTURED}/{name}" for name in self._objects.names(CAPTURED)),
                ]
            # Objects that existed before another run took over do not belong to that run.
            if left and self._ask() is None:
                self._objects.remove(left)

    def _others(self, folder: str, own: str) -> list[str]:
        """Return the names in a folder of the checkpoint, without those in its folder `own`."""
        return [f"{folder}/{name}" for name in self._objects.names(folder) if name.partition("/")[0] != own]

    def save(self) -> None:
        """Bring what has changed to the store; when this returns, it is there.

        Raises FencedError when another run has taken over the checkpoint, and ExternalSystemError when the store does
        not answer.
        """
        self._bring(self._files.look)

    def keep(self, folder: str) -> None:
        """Bring what has changed in the files of one folder to the store, at any time; raises as `save` does.

        The other files may be about to change together, so they wait for `save`. Files that refer to these must be
        written later.
        """
        self._bring(lambda: self._files.look_in(folder))

    def _bring(self, look: Callable[[], Changes]) -> None:
        with self._lock:
            if self._has_failed:
                raise CheckpointError(
                    f"A change of the checkpoint {self.shown} could not be saved, so this run saves no more. Start the "
                    "job again; it resumes from what was saved before."
                )
            changes = look() if self._lost is None else Changes()
            if not changes:
                error = self._ask()
                if error is not None:
                    raise error
                return
            # The store may get what has failed, or have a part of it, and the next look does not return it again.
            self._has_failed = True
            files, content = self._put(changes.files)
            self._log.add(files, changes.gone, content)
            self._has_failed = False

    def _put(self, changed: Mapping[str, Change]) -> tuple[dict[str, StoredFile], bytes]:
        """Write content too large for an entry; return the places of all content, and the content of the entry."""
        files: dict[str, StoredFile] = {}
        content = b""
        packs = list(_packs(changed))
        with ThreadPoolExecutor(_AT_ONCE, "checkpoint-save") as pool:
            waiting = []
            for at, paths in enumerate(packs):
                packed = b"".join(changed[path].content for path in paths)
                name = self._log.next_name
                if at == len(packs) - 1 and len(packed) <= _PACKED_BYTES:
                    content = packed
                else:
                    name = self._log.name_of_content()
                    waiting.append(pool.submit(self._log.put_content, name, io.BytesIO(packed)))
                offset = 0
                for path in paths:
                    size = len(changed[path].content)
                    piece = Piece(name, offset, size, digest_of(changed[path].content))
                    pieces = (*changed[path].before, *((piece,) if size else ()))
                    files[path] = StoredFile(changed[path].mtime_ns, pieces)
                    self._files.stored(path, pieces)
                    offset += size
            for done in waiting:
                done.result()
        return files, content

    def check(self) -> None:
        """Raise FencedError when another run has taken over the checkpoint: the store is asked."""
        with self._lock:
            error = self._ask()
        if error is not None:
            raise error

    def lost(self) -> FencedError | None:
        """Return the error if another run has taken over the checkpoint. The store is asked every few seconds."""
        if time.monotonic() - self._looked_s < _BETWEEN_LOOKS_S or not self._lock.acquire(blocking=False):
            return self._lost
        try:
            return self._ask()
        except ExternalSystemError:
            # A commit asks again, and waits for the answer.
            return None
        finally:
            self._looked_s = time.monotonic()
            self._lock.release()

    def _ask(self) -> FencedError | None:
        if self._lost is None:
            self._lost = self._log.lost()
        return self._lost


class StoredOwnership(Ownership):
    """A run's hold on a checkpoint on an object store."""

    def __init__(self, stored: StoredCheckpoint, local: Ownership) -> None:
        super().__init__(stored.folder, local.epoch, local.run)
        self._stored: Final = stored

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks get it together with the sources. They commit nothing, so the store need not be asked.
        return Ownership, (self._stored.folder, self.epoch, self.run)

    def begin(self) -> None:
        """Take over the checkpoint, and save what it begins with."""
        self._stored.take()
        super().begin()
        self._stored.save()

    def confirm(self) -> None:
        """Save what the run has written, which also shows whether the checkpoint is still its own."""
        self._stored.save()

    def lost(self) -> FencedError | None:
        """Return the error if another run has taken over the checkpoint since, else None."""
        return self._stored.lost() or super().lost()


def _packs(files: Mapping[str, Change]) -> Iterator[list[str]]:
    """Yield the paths of files whose content goes into one object; the last pack, perhaps empty, into the entry."""
    pack: list[str] = []
    size = 0
    for path in sorted(files, key=lambda path: -len(files[path].content)):
        length = len(files[path].content)
        if pack and size + length > _PACKED_BYTES:
            yield pack
            pack, size = [], 0
        pack.append(path)
        size += length
    yield pack
