"""Unserved jobs: the jobs of a home without a running server, so that they can be listed and canceled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.manager import Manager
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ADDRESS_FILE, ServerDirectory
from penstock.server.runs.processes import process_of
from penstock.server.service.job_resources import Job
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

__all__ = ["UnservedHome", "is_unserved", "open_unserved_home"]


class _Announced(msgspec.Struct, frozen=True):
    """The needed part of a server's announcement."""

    pid: int


def is_unserved(root: Path) -> bool:
    """Return whether a home has a store but no running server."""
    if not ServerDirectory(root).store.exists():
        return False
    try:
        announced = msgspec.json.decode((root / ADDRESS_FILE).read_bytes(), type=_Announced)
    except (OSError, msgspec.MsgspecError):
        return True
    # A killed server leaves its address behind.
    return process_of(announced.pid) is None


@dataclass(frozen=True)
class UnservedHome:
    """The jobs of a home without a server."""

    _store: Store
    _home: ServerDirectory

    def jobs(self, statuses: Collection[JobStatus]) -> list[Job]:
        """Return the jobs with one of the statuses, newest first; those with a driver have their progress."""
        service = self._service()
        return [service.get(job.id) for job in service.list_jobs(statuses)]

    def cancel(self, job_id: str, who: str, timeout_s: float) -> Job:
        """Cancel a job at once, as a server would, without affecting others. Returns the job as it is then."""
        service = self._service()
        service.cancel(job_id, who)
        Manager(self._store, Catalog([]), self._home).end_job(job_id, threading.Event(), timeout_s)
        return service.get(job_id)

    def _service(self) -> JobService:
        return JobService(self._store, Catalog([]), self._home)


@contextlib.contextmanager
def open_unserved_home(root: Path) -> Iterator[UnservedHome]:
    """Open the store of a home. Raises StoreError."""
    home = ServerDirectory(root)
    store = Store.open(sqlite_url(home.store))
    try:
        yield UnservedHome(store, home)
    finally:
        store.close()
