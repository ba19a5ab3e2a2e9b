"""Write versions: numbers for the writes of micro-batches, of which a later one is always greater, near the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.ownership import Ownership
from penstock.errors import CheckpointError

__all__ = ["WriteVersions", "no_version"]

_FOLDER: Final = "write-versions"
# How far ahead of its versions a run notes its limit. After a crash the next run begins at that limit.
_LEASE_US: Final = 2_000_000


class _Limit(msgspec.Struct):
    """A version that a run does not reach before it has noted a greater one."""

    limit: int


def no_version() -> int:
    """Return 0, the version in jobs whose sinks need none."""
    return 0


class WriteVersions:
    """The versions of a run: microseconds since 1970, but never going back, whatever the clock does.

    A version is greater than the one before by at least the microseconds between the two, and so greater than all that
    a task has made from it by adding 1 for each record. A run begins above all versions of earlier runs of its
    checkpoint, also of one that does not know yet that it has lost it: each notes a limit before it comes to it, and
    looks afterwards whether the checkpoint is still its own.

    Args:
        folder: the folder of the checkpoint.
        ownership: that of the run.
        wall_us: the clock, in microseconds since 1970.
        elapsed_us: a clock that never goes back.

    """

    def __init__(
        self,
        folder: Path,
        ownership: Ownership,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        elapsed_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._folder: Final = folder / _FOLDER
        self._ownership: Final = ownership
        self._wall_us: Final = wall_us
        self._elapsed_us: Final = elapsed_us
        # Both Spark's thread and that of the coordinator call this.
        self._lock: Final = threading.Lock()
        self._at_us = elapsed_us()
        self._limit = self._newest = self._earlier_limit()

    def next(self) -> int:
        """Return a version greater than all before. Raises FencedError when another run has taken the checkpoint."""
        with self._lock:
            now_us = self._elapsed_us()
            self._newest = max(self._wall_us(), self._newest + now_us - self._at_us + 1)
            self._at_us = now_us
            if self._newest >= self._limit:
                self._limit = self._newest + _LEASE_US
                write_atomically(self._own_file, msgspec.json.encode(_Limit(self._limit)))
                self._ownership.confirm()
            return self._newest

    @property
    def _own_file(self) -> Path:
        # A run that has lost the checkpoint may still write its own.
        return self._folder / f"{self._ownership.epoch}.json"

    def _earlier_limit(self) -> int:
        """Return the limit of earlier runs, which is this run's from now on."""
        files = sorted(self._folder.glob("*.json"))
        limit = max(map(_limit_in, files), default=0)
        if limit:
            write_atomically(self._own_file, msgspec.json.encode(_Limit(limit)))
        for file in files:
            if file != self._own_file:
                file.unlink(missing_ok=True)
        return limit


def _limit_in(file: Path) -> int:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Limit).limit
    except (OSError, msgspec.MsgspecError) as e:
        raise CheckpointError(
            f"The checkpoint is damaged: {file} cannot be read ({e}). If the clock of this machine is right, delete "
            "the file; the run writes it again."
        ) from e
