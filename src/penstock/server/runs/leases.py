"""Leases: a run shows beside its checkpoint that it is alive, so that managers on other machines can judge it.

Each run on a checkpoint has a lease, a numbered file in the folder beside it. Numbers only grow: a run whose lease is
not the newest has lost the checkpoint, and ends. Clocks of different machines are never compared: a manager waits by
its own clock for the lease to change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from penstock.base.durable import write_atomically
from penstock.errors import CheckpointMissingError
from penstock.server.lifecycle.decisions import GRACE_MS, Driver, DriverState, End, EndKind
from penstock.server.runs.processes import Ended, end_session

__all__ = ["Lease", "LeaseKeeper", "LeaseWatch", "lease_of", "offer", "revoke"]

_log: Final = logging.getLogger(__name__)
_SUFFIX: Final = ".lease"
_BEAT_S: Final = 1.0
# Far more than can be requested at once: a number must not become free while a run is about to take it.
_KEPT: Final = 100
_TERMINATE: Final = "terminate"
_KILL: Final = "kill"


class Lease(msgspec.Struct, frozen=True):
    """What a run says about itself: `beats` counts how often it did, `ended` is its last word.

    It belongs to the managers of one folder, `home`, on one host.
    """

    job: str
    run: int
    host: str
    home: str
    beats: int = 0
    working: bool = False
    ended: Ended | None = None


def _folder(checkpoint: Path) -> Path:
    return checkpoint.with_name(checkpoint.name + ".leases")


def _numbers(checkpoint: Path) -> list[int]:
    try:
        names = os.listdir(_folder(checkpoint))  # noqa: PTH208  # quicker
    except FileNotFoundError:
        return []
    return sorted(
        int(name.removesuffix(_SUFFIX))
        for name in names
        if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdigit()
    )


def _path(checkpoint: Path, number: int) -> Path:
    return _folder(checkpoint) / f"{number}{_SUFFIX}"


def _read(checkpoint: Path, number: int) -> Lease | None:
    try:
        return msgspec.json.decode(_path(checkpoint, number).read_bytes(), type=Lease)
    except (FileNotFoundError, msgspec.MsgspecError):
        # It was deleted since, or the disk was full when it was written.
        return None


def _find(checkpoint: Path, job: str, run: int) -> tuple[int, Lease, bool] | None:
    """The newest lease of a run, with its number, and whether it is the newest of all."""
    numbers = _numbers(checkpoint)
    for number in reversed(numbers):
        lease = _read(checkpoint, number)
        if lease is not None and (lease.job, lease.run) == (job, run):
            return number, lease, number == numbers[-1]
    return None


def lease_of(checkpoint: Path, job: str, run: int) -> Lease | None:
    """The lease of a run; None when it has none that is visible here."""
    found = _find(checkpoint, job, run)
    return None if found is None else found[1]


def offer(checkpoint: Path, lease: Lease) -> int:
    """Make the lease of a run, the newest one, and return its number. A run that has one keeps it.

    From then on, runs with older leases have lost the checkpoint. Raises OSError when it cannot be written. Only the
    first run of a job makes the folder; a later one would count from 1 without it, and raises CheckpointMissingError.
    """
    folder = _folder(checkpoint)
    if lease.run <= 1:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise CheckpointMissingError(
            f"The job has run with the checkpoint {checkpoint}, and {folder.name} beside it is missing. Mount the "
            "disk or share that holds them."
        )
    while True:
        found = _find(checkpoint, lease.job, lease.run)
        if found is not None:
            return found[0]
        numbers = _numbers(checkpoint)
        number = numbers[-1] + 1 if numbers else 1
        hidden = _folder(checkpoint) / f".{number}-{os.getpid()}-{threading.get_ident()}"
        try:
            hidden.write_bytes(msgspec.json.encode(lease))
            # Only one run gets the number.
            os.link(hidden, _path(checkpoint, number))
        except FileExistsError:
            continue
        finally:
            hidden.unlink(missing_ok=True)
        for old in numbers[:-_KEPT]:
            for path in (_path(checkpoint, old), *_words(checkpoint, old)):
                path.unlink(missing_ok=True)
        return number


def revoke(checkpoint: Path, job: str, run: int, *, kill: bool) -> None:
    """Ask a run on another machine to end: in order, or at once. It checks for that with each beat."""
    found = _find(checkpoint, job, run)
    if found is not None:
        terminate, at_once = _words(checkpoint, found[0])
        (at_once if kill else terminate).touch()


def _words(checkpoint: Path, number: int) -> tuple[Path, Path]:
    return (_folder(checkpoint) / f"{number}.{_TERMINATE}", _folder(checkpoint) / f"{number}.{_KILL}")


# In the driver


def _terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class LeaseKeeper:
    """Keeps the lease of the run in this process, and ends the process when the lease is lost; a context manager.

    Args:
        checkpoint: the checkpoint of the run.
        number: that of its lease.
        terminate: makes this process end in order.
        kill: ends this process and all others in its session.
        beat_s: how often it shows that it is alive.

    """

    def __init__(
        self,
        checkpoint: Path,
        number: int,
        terminate: Callable[[], None] = _terminate_self,
        kill: Callable[[], None] = end_session,
        beat_s: float = _BEAT_S,
    ) -> None:
        self._checkpoint: Final = checkpoint
        self._number: Final = number
        self._terminate: Final = terminate
        self._kill: Final = kill
        self._beat_s: Final = beat_s
        self._lease: Lease | None = None
        self._told_s: float | None = None
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._keep, name="penstock-lease", daemon=True)
        # Set once the query of the run has begun.
        self.working = False

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, ended: Ended) -> None:
        """Write the last word of the run."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            # Without it, managers wait for the lease to run out.
            self._write(ended)

    def beat(self) -> None:
        """Show once that the run is alive, or end it when its lease is lost or revoked."""
        newest = _numbers(self._checkpoint)[-1:]
        terminate, kill = _words(self._checkpoint, self._number)
        lost = newest != [self._number]
        if kill.exists() or (self._told_s is not None and time.monotonic() - self._told_s > GRACE_MS / 1000):
            self._write(Ended("failed", "It was killed, since it did not end when asked to."))
            self._kill()
        elif (lost or terminate.exists()) and self._told_s is None:
            self._told_s = time.monotonic()
            self._terminate()
        if not lost:
            self._write(None)

    def _keep(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                self.beat()
            except OSError as e:
                # Managers wait for many beats before they judge the run.
                _log.warning("The lease of the run cannot be kept now: %s", e)

    def _write(self, ended: Ended | None) -> None:
        lease = self._lease or _read(self._checkpoint, self._number)
        if lease is None:
            return
        self._lease = msgspec.structs.replace(lease, beats=lease.beats + 1, working=self.working, ended=ended)
        write_atomically(
            _path(self._checkpoint, self._number), msgspec.json.encode(self._lease), durable=False
        )


# In the manager


class LeaseWatch:
    """Judges runs on other machines by their leases.

    A run is dead when its lease has not changed for `patience_s` by this machine's clock.
    """

    def __init__(self, patience_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._patience_s: Final = patience_s
        self._clock_s: Final = clock_s
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def look(self, checkpoint: Path, job: str, run: int) -> Driver:
        """Observe a run. Without a lease nothing is known: this machine does not share the checkpoint."""
        found = _find(checkpoint, job, run)
        if found is None:
            return Driver(DriverState.UNKNOWN)
        _, lease, is_newest = found
        if lease.ended is not None:
            return Driver(DriverState.ENDED, end=End(EndKind[lease.ended.kind.upper()], lease.ended.why))
        now_s = self._clock_s()
        beats, since_s = self._seen.get((job, run), (-1, now_s))
        if beats != lease.beats:
            since_s = now_s
        self._seen[job, run] = (lease.beats, since_s)
        if is_newest and now_s - since_s < self._patience_s:
            return Driver(DriverState.ALIVE, working=lease.working)
        why = f"Its lease on {lease.host} has not changed for {self._patience_s:g} s."
        kind = EndKind.KILLED if lease.beats else EndKind.VOIDED
        return Driver(DriverState.ENDED, end=End(kind, why))
