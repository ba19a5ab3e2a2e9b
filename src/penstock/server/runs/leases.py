"""Leases: a run shows next to its checkpoint that it is alive, so that managers on other machines can observe it.

Each run on a checkpoint has a lease, a numbered file in a folder next to the checkpoint. Numbers only grow: a run whose
lease is not the newest has lost the checkpoint, and ends. Clocks of different machines are never compared: a manager
waits by its own clock for the lease to change.
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
# Far more than can be offered at once: a number must not become free while a run is about to take it.
_KEPT: Final = 100
_TERMINATE: Final = "terminate"
_KILL: Final = "kill"


class Lease(msgspec.Struct, frozen=True):
    """The state of a run, as it reports it: `beats` counts its reports, `ended` is its final status.

    The run belongs to the managers of one folder, `home`, on one host.
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
        # It has been deleted, or the disk was full when it was written.
        return None


def _find(checkpoint: Path, job: str, run: int) -> tuple[int, Lease, bool] | None:
    """Return the newest lease of a run, with its number, and whether it is the newest of all; None without one."""
    numbers = _numbers(checkpoint)
    for number in reversed(numbers):
        lease = _read(checkpoint, number)
        if lease is not None and (lease.job, lease.run) == (job, run):
            return number, lease, number == numbers[-1]
    return None


def lease_of(checkpoint: Path, job: str, run: int) -> Lease | None:
    """Return the lease of a run; None if this machine sees none."""
    found = _find(checkpoint, job, run)
    return None if found is None else found[1]


def offer(checkpoint: Path, lease: Lease) -> int:
    """Create the lease of a run as the newest one, and return its number. A run that has a lease keeps it.

    From then on, runs with older leases have lost the checkpoint. Raises OSError if the lease cannot be written. Only
    the first run of a job creates the folder. For a later run without the folder, numbers would start from 1 again:
    raises CheckpointMissingError.
    """
    folder = _folder(checkpoint)
    if lease.run <= 1:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise CheckpointMissingError(
            f"The job has run with the checkpoint {checkpoint}, but {folder.name} next to it is missing. Mount the "
            "disk or share that has them."
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
            # A link fails if the number is taken: only one run gets it.
            os.link(hidden, _path(checkpoint, number))
        except FileExistsError:
            continue
        finally:
            hidden.unlink(missing_ok=True)
        for old in numbers[:-_KEPT]:
            for path in (_path(checkpoint, old), *_requests(checkpoint, old)):
                path.unlink(missing_ok=True)
        return number


def revoke(checkpoint: Path, job: str, run: int, *, kill: bool) -> None:
    """Ask a run on another machine to end: gracefully, or at once with `kill`. The run checks for this at each beat."""
    found = _find(checkpoint, job, run)
    if found is not None:
        terminate, at_once = _requests(checkpoint, found[0])
        (at_once if kill else terminate).touch()


def _requests(checkpoint: Path, number: int) -> tuple[Path, Path]:
    """Return the files that ask the run of a lease to terminate, and to be killed."""
    return (_folder(checkpoint) / f"{number}.{_TERMINATE}", _folder(checkpoint) / f"{number}.{_KILL}")


# In the driver


def _terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class LeaseKeeper:
    """A context manager that renews the lease of the run in this process, and ends the process if the lease is lost.

    Args:
        checkpoint: the checkpoint of the run.
        number: the number of its lease.
        terminate: makes this process end gracefully.
        kill: ends this process and all others in its session.
        beat_s: the interval at which the lease is renewed, in seconds.

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
        self._terminated_s: float | None = None
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._keep, name="penstock-lease", daemon=True)
        # True once the query of the run has begun.
        self.working = False

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, ended: Ended) -> None:
        """Write the final status of the run."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            # If this fails, managers wait for the lease to expire.
            self._write(ended)

    def beat(self) -> None:
        """Renew the lease once, or end the run if its lease is lost or revoked."""
        newest = _numbers(self._checkpoint)[-1:]
        terminate, kill = _requests(self._checkpoint, self._number)
        lost = newest != [self._number]
        if kill.exists() or (
            self._terminated_s is not None and time.monotonic() - self._terminated_s > GRACE_MS / 1000
        ):
            self._write(Ended("failed", "It was killed, since it did not end when asked to."))
            self._kill()
        elif (lost or terminate.exists()) and self._terminated_s is None:
            self._terminated_s = time.monotonic()
            self._terminate()
        if not lost:
            self._write(None)

    def _keep(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                self.beat()
            except OSError as e:
                # Managers wait for many beats before they consider the run dead.
                _log.warning("The lease of the run could not be renewed; it is tried again: %s", e)

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
    """An observer of runs on other machines, by their leases.

    A run is dead if its lease has not changed for `patience_s` by this machine's clock.
    """

    def __init__(self, patience_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._patience_s: Final = patience_s
        self._clock_s: Final = clock_s
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def look(self, checkpoint: Path, job: str, run: int) -> Driver:
        """Observe a run. Without a lease its state is unknown, since this machine does not share the checkpoint."""
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
