"""Ownership: which run owns a checkpoint. Locks keep out a second run; if they fail, an epoch fences off the first."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.errors import CheckpointError, CheckpointInUseError, FencedError

__all__ = ["LOCK_FILE", "Ownership", "lock_checkpoint", "lock_for_jvm", "newest_epoch"]

LOCK_FILE: Final = "in-use.lock"
"""The file in a checkpoint that its run locks."""

_EPOCH_FILE: Final = "epoch.json"
_HELD: Final = (errno.EACCES, errno.EAGAIN)
# The driver locks one byte of the file, its JVM another; the JVM may outlive the driver for a moment.
_DRIVER: Final = 0
_JVM: Final = 1

# The checkpoints that this process has locked. The system would give it the same lock again, and when it then closes
# the file a second time, take the first lock away.
_own: Final[set[str]] = set()
_own_guard: Final = threading.Lock()


class _Epoch(msgspec.Struct, frozen=True):
    """The newest start on a checkpoint. The number is for people; the run id holds even if the file was recreated."""

    epoch: int
    run: str


class Ownership:
    """A run's hold on a checkpoint, which ends when another run begins there."""

    def __init__(self, folder: Path, epoch: int, run: str) -> None:
        self._path: Final = folder / _EPOCH_FILE
        self._mine: Final = _Epoch(epoch, run)

    @property
    def epoch(self) -> int:
        """The number of the run among those that owned the checkpoint."""
        return self._mine.epoch

    @property
    def run(self) -> str:
        """The id of the run as an owner."""
        return self._mine.run

    @staticmethod
    def of_next_run(folder: Path) -> Ownership:
        """Return the hold of a run that is about to begin. Raises CheckpointError if the newest epoch is unreadable."""
        return Ownership(folder, newest_epoch(folder) + 1, uuid.uuid4().hex)

    @staticmethod
    def take(folder: Path) -> Ownership:
        """Take over a checkpoint at once. Raises what `of_next_run` raises."""
        ownership = Ownership.of_next_run(folder)
        ownership.begin()
        return ownership

    def begin(self) -> None:
        """Take over the checkpoint, durably."""
        write_atomically(self._path, msgspec.json.encode(self._mine))

    def check(self) -> None:
        """Raise FencedError when another run has taken over the checkpoint since."""
        error = self.lost()
        if error is not None:
            raise error

    def confirm(self) -> None:
        """Check the ownership after the run has written something; the next run then finds it."""
        self.check()

    def lost(self) -> FencedError | None:
        """Return the error if another run has taken over the checkpoint since, else None."""
        try:
            newest = _read(self._path)
        except (OSError, msgspec.MsgspecError) as e:
            return FencedError(
                f"{self._path} can no longer be read ({e}), so another run may have taken over the checkpoint. "
                "This run has ended and commits nothing more; start it again with the checkpoint."
            )
        if newest == self._mine:
            return None
        return FencedError(
            f"Another run has taken over the checkpoint {self._path.parent} (its epoch is {newest.epoch}, this "
            f"run's {self._mine.epoch}). This run has ended and commits nothing more. Let only one run use a "
            "checkpoint, and leave its lock file where it is."
        )


def newest_epoch(folder: Path) -> int:
    """Return how often a job has started on a checkpoint. Raises CheckpointError when that cannot be read."""
    path = folder / _EPOCH_FILE
    if not path.exists():
        return 0
    try:
        return _read(path).epoch
    except (OSError, msgspec.MsgspecError) as e:
        raise CheckpointError(
            f"The checkpoint is damaged: {path} cannot be read ({e}). Make sure that no other run uses the "
            "checkpoint, then delete the file; the next run creates it again."
        ) from e


def _read(path: Path) -> _Epoch:
    return msgspec.json.decode(path.read_bytes(), type=_Epoch)


@contextlib.contextmanager
def lock_checkpoint(folder: Path, stop: threading.Event, timeout_s: float) -> Iterator[None]:
    """Lock a checkpoint for this process, when neither another run nor a leftover JVM of a killed one holds it.

    Comes before anything else, so that a refused run leaves no trace. Waits up to `timeout_s`, or until `stop` is set;
    then raises CheckpointInUseError.
    """
    with contextlib.ExitStack() as stack:
        place = str(folder.resolve())
        _await(lambda: _claim(place), folder, stop, timeout_s)
        stack.callback(_own.discard, place)
        path = folder / LOCK_FILE
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise CheckpointError(
                f"{path} cannot be written ({e.strerror}). Choose another --checkpoint."
            ) from e
        # This also releases the lock.
        stack.callback(os.close, file)
        _await(lambda: _try_lock(file, _DRIVER, path), folder, stop, timeout_s)
        _await(lambda: _try_lock(file, _JVM, path), folder, stop, timeout_s)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _JVM)
        yield


def lock_for_jvm(folder: Path, jvm: Any, stop: threading.Event, timeout_s: float) -> Callable[[], object]:
    """Lock the checkpoint for the JVM that runs the query, within `lock_checkpoint`; return the function that ends it.

    When this process is killed, the JVM may still work for a moment; a restarted job waits for it.
    """
    channel = jvm.java.io.RandomAccessFile(str(folder / LOCK_FILE), "rw").getChannel()
    try:
        _await(lambda: channel.tryLock(_JVM, 1, False), folder, stop, timeout_s)
    except CheckpointError:
        channel.close()
        raise
    # Only its end closes the file: the garbage collector would close it some time during the next run in this JVM,
    # whose lock the system would then take away.
    close: Callable[[], object] = channel.close
    return close


def _claim(place: str) -> bool:
    with _own_guard:
        if place in _own:
            return False
        _own.add(place)
        return True


def _try_lock(file: int, place: int, path: Path) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as e:
        if e.errno in _HELD:
            return False
        raise CheckpointError(
            f"{path} cannot be locked ({e.strerror}). Choose a --checkpoint on a file system with locks."
        ) from e
    return True


def _await(try_lock: Callable[[], Any], folder: Path, stop: threading.Event, timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (lock := try_lock()):
        if time.monotonic() >= deadline or stop.is_set():
            raise CheckpointInUseError(
                f"The checkpoint {folder} is in use by another run of the job. Stop that one first."
            )
        time.sleep(0.1)
    return lock
