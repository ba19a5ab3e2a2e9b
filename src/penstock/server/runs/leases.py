"""Leases: a run shows with its checkpoint that it is alive, so that managers on other machines can observe it.

Each run on a checkpoint has a lease: a numbered file next to the checkpoint, or an object on its store. Numbers only
grow: a run whose lease is not the newest has lost the checkpoint, and ends. Clocks of different machines are never
compared: a manager waits by its own clock for the lease to change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Self

import msgspec

from penstock.errors import PenstockError
from penstock.server.lifecycle.decisions import GRACE_MS, Driver, DriverState, End, EndKind
from penstock.server.runs.lease_places import KILL, TERMINATE, LeasePlace
from penstock.server.runs.processes import Ended, end_session

__all__ = ["Lease", "LeaseKeeper", "LeaseWatch", "lease_of", "number_of_lease", "offer", "revoke"]

_log: Final = logging.getLogger(__name__)
# Far more than can be offered at once: a number must not become free while a run is about to take it.
_KEPT: Final = 100


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


def _read(leases: LeasePlace, number: int) -> Lease | None:
    content = leases.read(number)
    try:
        return None if content is None else msgspec.json.decode(content, type=Lease)
    except msgspec.MsgspecError:
        # The disk was full when it was written.
        return None


def _find(leases: LeasePlace, job: str, run: int) -> tuple[int, Lease, bool] | None:
    """Return the newest lease of a run, with its number, and whether it is the newest of all; None without one."""
    numbers = leases.numbers()
    for number in reversed(numbers):
        lease = _read(leases, number)
        if lease is not None and (lease.job, lease.run) == (job, run):
            return number, lease, number == numbers[-1]
    return None


def lease_of(leases: LeasePlace, job: str, run: int) -> Lease | None:
    """Return the lease of a run; None if this machine sees none."""
    found = _find(leases, job, run)
    return None if found is None else found[1]


def number_of_lease(leases: LeasePlace, job: str, run: int) -> int | None:
    """Return the number of the lease of a run; None if this machine sees none."""
    found = _find(leases, job, run)
    return None if found is None else found[0]


def offer(leases: LeasePlace, lease: Lease) -> int:
    """Create the lease of a run as the newest one, and return its number. A run that has a lease keeps it.

    From then on, runs with older leases have lost the checkpoint. Only the first run of a job begins with numbers. For
    a later run without any, they would start from 1 again: raises CheckpointMissingError. Raises OSError or
    ExternalSystemError if the lease cannot be written.
    """
    leases.prepare(is_first=lease.run <= 1)
    while True:
        found = _find(leases, lease.job, lease.run)
        if found is not None:
            return found[0]
        numbers = leases.numbers()
        number = numbers[-1] + 1 if numbers else 1
        if leases.claim(number, msgspec.json.encode(lease)):
            leases.remove(numbers[:-_KEPT])
            return number


def revoke(leases: LeasePlace, job: str, run: int, *, kill: bool) -> None:
    """Ask a run on another machine to end: gracefully, or at once with `kill`. The run checks for this at each beat."""
    found = _find(leases, job, run)
    if found is not None:
        leases.ask(found[0], KILL if kill else TERMINATE)


# In the driver


def _terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class LeaseKeeper:
    """A context manager that renews the lease of the run in this process, and ends the process if the lease is lost.

    Args:
        leases: the leases of the checkpoint of the run.
        number: the number of its lease.
        terminate: makes this process end gracefully.
        kill: ends this process and all others in its session.
        relay: called with the requests to the run, at each beat and, without any, before its final status.

    """

    def __init__(
        self,
        leases: LeasePlace,
        number: int,
        terminate: Callable[[], None] = _terminate_self,
        kill: Callable[[], None] = end_session,
        relay: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._leases: Final = leases
        self._number: Final = number
        self._terminate: Final = terminate
        self._kill: Final = kill
        self._relay: Final = relay
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
        with contextlib.suppress(OSError, PenstockError):
            # If this fails, managers wait for the lease to expire.
            self._relay(())
            self._write(ended)

    def beat(self) -> None:
        """Renew the lease once, or end the run if its lease is lost or revoked."""
        newest, asked = self._leases.look(self._number)
        lost = newest != self._number
        if KILL in asked or (
            self._terminated_s is not None and time.monotonic() - self._terminated_s > GRACE_MS / 1000
        ):
            self._write(Ended("failed", "It was killed, since it did not end when asked to."))
            self._kill()
        elif (lost or TERMINATE in asked) and self._terminated_s is None:
            self._terminated_s = time.monotonic()
            self._terminate()
        if not lost:
            self._write(None)
            self._relay(asked)

    def _keep(self) -> None:
        while not self._stop.wait(self._leases.beat_s):
            try:
                self.beat()
            except (OSError, PenstockError) as e:
                # Managers wait for many beats before they consider the run dead.
                _log.warning("The lease of the run could not be renewed; it is tried again: %s", e)

    def _write(self, ended: Ended | None) -> None:
        lease = self._lease or _read(self._leases, self._number)
        if lease is None:
            return
        self._lease = msgspec.structs.replace(lease, beats=lease.beats + 1, working=self.working, ended=ended)
        self._leases.replace(self._number, msgspec.json.encode(self._lease))


# In the manager


class LeaseWatch:
    """An observer of runs on other machines, by their leases.

    A run is dead if its lease has not changed for `patience_s` by this machine's clock.
    """

    def __init__(self, patience_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._patience_s: Final = patience_s
        self._clock_s: Final = clock_s
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def look(self, leases: LeasePlace, job: str, run: int) -> Driver:
        """Observe a run. Without a lease its state is unknown, since this machine does not share the checkpoint."""
        found = _find(leases, job, run)
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
