"""Store: each change of a job is one transaction that compares before it sets, and records an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final, Self, TypeVar

import msgspec
import sqlalchemy as sa

from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.errors import JobChangedError, JobStateError, UnknownIdError
from penstock.server.lifecycle.decisions import Decision, End, may_want
from penstock.server.lifecycle.restarts import NO_FAILURES
from penstock.server.lifecycle.statuses import ENDED, Desired, JobStatus, check_transition
from penstock.server.store.database import events, jobs, operations, runs
from penstock.server.store.engine import connect
from penstock.server.store.leadership import check_leader, resign, try_to_lead
from penstock.server.store.logged_transactions import LoggedTransactions
from penstock.server.store.row_types import (
    Event,
    JobRow,
    NewJob,
    OperationKind,
    OperationRow,
    RunRow,
    Stop,
)
from penstock.server.store.transactions import EngineTransactions, Transactions
from penstock.server.store.user_requests import (
    MANAGER,
    UNFINISHED,
    Asked,
    add_event,
    add_operation,
    as_id,
    end_operation,
    find_operations,
    find_same_request,
    rows_of,
    settle,
)

__all__ = ["Store", "wall_clock_ms"]

_Row = TypeVar("_Row")
_Result = TypeVar("_Result")
_DESIRED_KINDS: Final = ("cancel", "stop", "pause", "resume")


class Store:
    """An open store. Safe to use from several threads.

    Args:
        transactions: those of its database.
        now_ms: the clock, in milliseconds since 1970.

    """

    def __init__(self, transactions: Transactions, now_ms: Callable[[], int] | None = None) -> None:
        self._transactions: Final = transactions
        self._now_ms: Final = now_ms or wall_clock_ms

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the store at a URL, and create or migrate it if necessary.

        The URL is one of `connect`, or `s3://BUCKET/PREFIX`. Raises JobDefinitionError for any other URL, StoreError if
        the store cannot be used.
        """
        if is_stored(url):
            return cls(LoggedTransactions.at(url))
        return cls(EngineTransactions(connect(url)))

    def close(self) -> None:
        """Close all connections."""
        self._transactions.close()

    # Reading

    def job(self, job_id: str) -> JobRow:
        """Return a job. Raises UnknownIdError."""
        with self._transactions.reading() as connection:
            return _job(connection, job_id)

    def jobs(
        self,
        statuses: Collection[JobStatus] = tuple(JobStatus),
        limit: int = 1000,
        after: tuple[int, str] | None = None,
    ) -> list[JobRow]:
        """Return the jobs with one of the statuses, newest first; with `after`, those after a creation time and id."""
        query = (
            sa.select(jobs)
            .where(jobs.c.status.in_(sorted(statuses)))
            .order_by(jobs.c.created_ms.desc(), jobs.c.id)
            .limit(limit)
        )
        if after is not None:
            created_ms, job_id = after
            same = sa.and_(jobs.c.created_ms == created_ms, jobs.c.id > as_id(job_id))
            query = query.where(sa.or_(jobs.c.created_ms < created_ms, same))
        return self._rows(query, JobRow)

    def live_jobs(self) -> list[JobRow]:
        """Return the unfinished jobs."""
        return self.jobs(set(JobStatus) - ENDED, limit=100_000)

    def run(self, job_id: str, epoch: int) -> RunRow:
        """Return a run of a job. Raises UnknownIdError."""
        query = sa.select(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
        found = self._rows(query, RunRow)
        if not found:
            raise UnknownIdError(f"The job {job_id} has no run {epoch}.")
        return found[0]

    def runs(self, job_id: str) -> list[RunRow]:
        """Return the runs of a job, newest first."""
        query = sa.select(runs).where(runs.c.job_id == job_id).order_by(runs.c.epoch.desc())
        return self._rows(query, RunRow)

    def operation(self, operation_id: str) -> OperationRow:
        """Return an operation. Raises UnknownIdError."""
        found = self._operations(operations.c.id == as_id(operation_id))
        if not found:
            raise UnknownIdError(f"There is no operation {operation_id!r}.")
        return found[0]

    def unfinished_operations(self, kinds: Collection[OperationKind]) -> list[OperationRow]:
        """Return the unfinished operations of some kinds, oldest first."""
        return self._operations(operations.c.kind.in_(kinds), operations.c.state.in_(UNFINISHED))

    def unfinished_of(self, job_id: str) -> list[OperationRow]:
        """Return the unfinished operations on a job, oldest first."""
        return self._operations(operations.c.job_id == job_id, operations.c.state.in_(UNFINISHED))

    def has_run(self, checkpoint: str) -> bool:
        """Return whether a job with a checkpoint was ever RUNNING, so that the checkpoint must exist."""
        query = (
            sa.select(events.c.id)
            .join(jobs, jobs.c.id == events.c.job_id)
            .where(
                jobs.c.checkpoint == checkpoint,
                events.c.what == "status",
                events.c.detail["to"].as_string() == JobStatus.RUNNING,
            )
            .limit(1)
        )
        with self._transactions.reading() as connection:
            return connection.execute(query).first() is not None

    def rescales(self, job_id: str, limit: int = 100) -> list[OperationRow]:
        """Return the newest rescale operations on a job, oldest first."""
        query = (
            sa.select(operations)
            .where(operations.c.job_id == job_id, operations.c.kind == "rescale")
            .order_by(operations.c.created_ms.desc(), operations.c.id.desc())
            .limit(limit)
        )
        return self._rows(query, OperationRow)[::-1]

    def events_by(self, job_id: str, who: str, limit: int = 100) -> list[Event]:
        """Return the newest events by a user on a job, oldest first."""
        query = (
            sa.select(events)
            .where(events.c.job_id == job_id, events.c.who == who)
            .order_by(events.c.id.desc())
            .limit(limit)
        )
        return self._rows(query, Event)[::-1]

    def events(self, job_id: str | None = None, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events after another one, of one job or of all, oldest first."""
        query = sa.select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
        if job_id is not None:
            query = query.where(events.c.job_id == job_id)
        return self._rows(query, Event)

    def _rows(self, query: sa.Select[Any], kind: type[_Row]) -> list[_Row]:
        with self._transactions.reading() as connection:
            return rows_of(connection.execute(query), kind)

    def _operations(self, *conditions: sa.ColumnElement[bool]) -> list[OperationRow]:
        with self._transactions.reading() as connection:
            return find_operations(connection, *conditions)

    # Requests of users

    def submit(self, job: NewJob, asked: Asked) -> OperationRow:
        """Add a job to run. Raises JobStateError if an unfinished job uses its checkpoint."""
        now_ms = self._now_ms()
        row = {
            **msgspec.to_builtins(job),
            "created_ms": now_ms,
            "created_by": asked.who,
            "desired": Desired.RUNNING,
            "status": JobStatus.CREATED,
            "reason": "a user submitted it",
            "since_ms": now_ms,
            "delay_ms": 0,
            "history": msgspec.to_builtins(NO_FAILURES),
            "epoch": 0,
            "version": 1,
        }

        def add(connection: sa.Connection) -> OperationRow:
            try:
                # In its own savepoint: after an error, PostgreSQL can continue a transaction only from a savepoint.
                with connection.begin_nested():
                    connection.execute(jobs.insert().values(row))
            except sa.exc.IntegrityError:
                live = sa.select(jobs.c.id).where(
                    jobs.c.checkpoint == job.checkpoint, jobs.c.status.not_in(sorted(ENDED))
                )
                other = connection.execute(live).scalar_one_or_none()
                raise JobStateError(
                    f"The job {other} uses this checkpoint, and has not ended. Stop or cancel it first."
                ) from None
            return add_operation(connection, self._now_ms(), job.id, asked, result={"job": job.id})

        return self._do_once(asked, None, add)

    def set_desired(
        self, job_id: str, desired: Desired, asked: Asked, stop: Stop | None = None
    ) -> OperationRow:
        """Set the desired status of a job. Raises JobStateError if it has ended, or its end was already requested."""

        def change(connection: sa.Connection) -> OperationRow:
            job = _job(connection, job_id, lock=True)
            if job.status in ENDED:
                raise JobStateError(f"The job {job_id} is {job.status}, which is final. Submit it again.")
            if not may_want(job.desired, desired):
                raise JobStateError(
                    f"{job.desired} is already requested for the job {job_id}, and cannot be undone."
                )
            connection.execute(
                jobs.update()
                .where(jobs.c.id == job_id)
                .values(
                    desired=desired,
                    stop=None if stop is None else msgspec.to_builtins(stop),
                    version=job.version + 1,
                )
            )
            for before in find_operations(
                connection,
                operations.c.job_id == job_id,
                operations.c.kind.in_(_DESIRED_KINDS),
                operations.c.state.in_(UNFINISHED),
            ):
                end_operation(
                    connection, self._now_ms(), before, error=f"A user has since requested {desired}."
                )
            operation_id = None if stop is None else stop.operation
            added = add_operation(connection, self._now_ms(), job_id, asked, operation_id=operation_id)
            if job.status is desired.status:
                added = end_operation(connection, self._now_ms(), added, result={})
            return added

        return self._do_once(asked, job_id, change)

    def begin_operation(self, job_id: str, asked: Asked, operation_id: str | None = None) -> OperationRow:
        """Request an operation that does not change the desired status. Raises UnknownIdError."""

        def add(connection: sa.Connection) -> OperationRow:
            _job(connection, job_id)
            return add_operation(connection, self._now_ms(), job_id, asked, operation_id=operation_id)

        return self._do_once(asked, job_id, add)

    def delete(self, job_id: str, who: str, *, checkpoint: bool) -> JobRow:
        """Delete a job that has ended, and return it. Its events stay.

        `checkpoint` says that its checkpoint will be deleted too. Raises JobStateError if the job has not ended, or if
        another job uses a checkpoint to be deleted.
        """

        def remove(connection: sa.Connection) -> JobRow:
            job = _job(connection, job_id, lock=True)
            if job.status not in ENDED:
                raise JobStateError(
                    f"The job {job_id} is {job.status}. Cancel it first; only a job that has ended can be deleted."
                )
            if checkpoint:
                others = sa.select(jobs.c.id).where(jobs.c.checkpoint == job.checkpoint, jobs.c.id != job_id)
                for other in connection.execute(others).scalars():
                    raise JobStateError(
                        f"The job {other} uses the checkpoint too. Delete {job_id} without its checkpoint, "
                        f"or delete {other} first."
                    )
            for table in (operations, runs):
                connection.execute(table.delete().where(table.c.job_id == job_id))
            connection.execute(jobs.delete().where(jobs.c.id == job_id))
            detail = {"name": job.name, "status": job.status, "checkpoint": checkpoint}
            add_event(connection, self._now_ms(), job_id, who, "deleted", detail)
            return job

        return self._transactions.write(remove)

    def _do_once(
        self, asked: Asked, job_id: str | None, act: Callable[[sa.Connection], OperationRow]
    ) -> OperationRow:
        """Execute a request, unless it was executed before with the same key; then return that operation."""
        try:
            return self._transactions.write(
                lambda connection: find_same_request(connection, asked, job_id) or act(connection)
            )
        except sa.exc.IntegrityError:
            # The key was used since the look-up.
            with self._transactions.reading() as connection:
                found = find_same_request(connection, asked, job_id)
            if found is None:
                raise
            return found

    # Changes by the manager

    def lead(self, holder: str, lease_ms: int) -> int | None:
        """Take or renew the lease. Returns the epoch with which the manager leads; None while another manager leads."""

        def lead(connection: sa.Connection) -> int | None:
            unchanged_ms = self._transactions.lease_unchanged_ms()
            return try_to_lead(connection, holder, lease_ms, self._now_ms(), unchanged_ms)

        try:
            return self._transactions.write(lead)
        except sa.exc.IntegrityError:
            # Another manager took the very first lease at the same moment.
            return None

    def resign(self, holder: str) -> None:
        """Give up the lease of a manager, if it has it."""
        self._transactions.write(lambda connection: resign(connection, holder))

    def check_leader(self, leader: int) -> None:
        """Raise LeadershipLostError unless the epoch leads."""
        with self._transactions.reading() as connection:
            check_leader(connection, leader)

    def _write_leading(self, leader: int, act: Callable[[sa.Connection], _Result]) -> _Result:
        """Carry out a transaction in which no other manager can take over. Raises LeadershipLostError."""

        def act_if_leading(connection: sa.Connection) -> _Result:
            check_leader(connection, leader)
            return act(connection)

        return self._transactions.write(act_if_leading)

    def record(
        self, leader: int, job: JobRow, decision: Decision, *, host: str = "", end: End | None = None
    ) -> JobRow:
        """Record a decision on a job as observed, before it is carried out. Returns the changed job.

        `end` is the end of its run, if it has ended. Raises JobChangedError if the job has changed since it was
        observed, LeadershipLostError if another manager leads.
        """
        now_ms = self._now_ms()
        changes: dict[str, Any] = {"version": job.version + 1}
        if decision.status is not None:
            check_transition(job.status, decision.status)
            changes |= {
                "status": decision.status,
                "reason": decision.reason,
                "since_ms": now_ms,
                "delay_ms": decision.delay_ms,
            }
        if decision.history is not None:
            changes["history"] = msgspec.to_builtins(decision.history)
        if decision.signals:
            changes["signalled_ms"] = now_ms
        starts = decision.status is JobStatus.STARTING
        if starts:
            changes |= {"epoch": job.epoch + 1, "signalled_ms": None}

        def record(connection: sa.Connection) -> JobRow:
            as_it_was = (jobs.c.id == job.id, jobs.c.epoch == job.epoch, jobs.c.version == job.version)
            if connection.execute(jobs.update().where(*as_it_was).values(changes)).rowcount != 1:
                raise JobChangedError(f"The job {job.id} has changed since it was read. Read it again.")
            after = _job(connection, job.id)
            if starts:
                connection.execute(
                    runs.insert().values(job_id=job.id, epoch=after.epoch, host=host, created_ms=now_ms)
                )
            if decision.status is not None:
                detail = {
                    "from": job.status,
                    "to": after.status,
                    "reason": after.reason,
                    "run": after.epoch,
                    "leader": leader,
                }
                add_event(connection, self._now_ms(), job.id, MANAGER, "status", detail)
                settle(connection, now_ms, after, end)
            return after

        return self._write_leading(leader, record)

    def note_process(self, leader: int, run: RunRow, pid: int, started_ticks: int, boot: str) -> None:
        """Record the process of a run."""
        self._note(leader, run, {"pid": pid, "started_ticks": started_ticks, "boot": boot})

    def note_end(self, leader: int, run: RunRow, end: End, exit_code: int | None) -> None:
        """Record how a run ended, the first time that this is observed."""
        if run.ended_ms is None:
            ended = {
                "ended_ms": self._now_ms(),
                "end_kind": end.kind.name,
                "exit_code": exit_code,
                "why": end.why,
            }
            self._note(leader, run, ended)

    def _note(self, leader: int, run: RunRow, values: dict[str, Any]) -> None:
        mine = (runs.c.job_id == run.job_id, runs.c.epoch == run.epoch)
        change = runs.update().where(*mine).values(values)
        self._write_leading(leader, lambda connection: connection.execute(change))

    def end_operation(
        self,
        leader: int,
        operation: OperationRow,
        *,
        result: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        """End an operation with a result or an error."""
        self._write_leading(
            leader,
            lambda connection: end_operation(
                connection, self._now_ms(), operation, result=result, error=error
            ),
        )

    def begin_if_unchanged(self, leader: int, job: JobRow, asked: Asked) -> OperationRow:
        """Request an operation as the leader, on a job as observed.

        Raises JobChangedError if the status, desired status or run of the job has changed, or an operation is
        unfinished.
        """

        def begin(connection: sa.Connection) -> OperationRow:
            now = _job(connection, job.id, lock=True)
            mine = (operations.c.job_id == job.id, operations.c.state.in_(UNFINISHED))
            as_it_was = (now.status, now.desired, now.epoch) == (job.status, job.desired, job.epoch)
            if not as_it_was or find_operations(connection, *mine):
                raise JobChangedError(f"The job {job.id} has changed since it was read. Read it again.")
            return add_operation(connection, self._now_ms(), job.id, asked)

        return self._write_leading(leader, begin)

    def add_event_of_leader(
        self, leader: int, job_id: str, who: str, what: str, detail: dict[str, Any]
    ) -> None:
        """Record an event. Raises LeadershipLostError if another manager leads."""
        self._write_leading(
            leader, lambda connection: add_event(connection, self._now_ms(), job_id, who, what, detail)
        )

    def mark_operation_running(self, leader: int, operation: OperationRow) -> None:
        """Set a PENDING operation to RUNNING."""
        mine = (operations.c.id == operation.id, operations.c.state == "PENDING")
        change = operations.update().where(*mine).values(state="RUNNING")
        self._write_leading(leader, lambda connection: connection.execute(change))

    def add_event(
        self, job_id: str | None, what: str, detail: dict[str, Any] | None = None, who: str = MANAGER
    ) -> None:
        """Record an event."""
        self._transactions.write(
            lambda connection: add_event(connection, self._now_ms(), job_id, who, what, detail or {})
        )


def wall_clock_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _job(connection: sa.Connection, job_id: str, *, lock: bool = False) -> JobRow:
    query = sa.select(jobs).where(jobs.c.id == as_id(job_id))
    found = rows_of(connection.execute(query.with_for_update() if lock else query), JobRow)
    if not found:
        raise UnknownIdError(f"There is no job {job_id!r}.")
    return found[0]
