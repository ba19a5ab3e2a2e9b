"""Sink checks: micro-batches that are replayed, killed, doubled, reordered or refused, and what a sink must do then."""

from __future__ import annotations

import itertools
import pickle
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, Sink, SinkTask, TaskContext, VersionedSink
from penstock.testing.connectors.conformance import Conformance, Refuted, rejects_within, run_checks
from penstock.testing.connectors.silent_server import silent_server
from penstock.testing.connectors.standing_worker import StandingWorker, write_block

__all__ = ["SINK_CHECKS", "SinkPromise", "SinkUnderTest", "StoredRecord", "check_sink"]

SinkPromise = Literal["exactly once", "idempotent by key", "at least once with ids", "at least once"]

SINK_CHECKS: Final = (
    "replay",
    "kill",
    "duplicates",
    "reorder",
    "partitions",
    "bad record",
    "credentials",
    "slow server",
)
"""The names of the checks, in the order of the table."""

_EXCUSABLE: Final = ("bad record", "credentials", "slow server")
_RECORDS: Final = record_type("id BIGINT NOT NULL, value STRING NOT NULL")
_IDS_OF_A_CHECK: Final = 10_000
# Near the clock, and so far apart that a task can add 1 for each record.
_versions: Final = itertools.count(time.time_ns() // 1000, 1000)


@dataclass(frozen=True)
class StoredRecord:
    """A record that the outside system holds. Readers leave out records whose `mark` they have had before."""

    id: int
    value: str
    mark: str | None = None


@dataclass(frozen=True)
class SinkUnderTest:
    """A sink, and how to look at what it has written. Records have an `id` (BIGINT) and a `value` (STRING).

    Args:
        system: the name in the table.
        promise: what the sink claims. Marks tell records apart if it is "at least once with ids"; the key of records
            is `id` if it is "idempotent by key". With "at least once" only what is missing is wrong.
        open: returns the sink anew, as a driver that starts; all of them have the same, empty destination.
        stored: returns all that the destination holds and readers see. In the order of arrival if `ordered`.
        ordered: whether the sink keeps the order of records within a sink partition.
        keyed: whether the destination holds only the last record of each `id`, as it does if the sink is "idempotent
            by key".
        bad: a value that the destination refuses.
        with_wrong_login: opens the sink with a login that the destination refuses.
        secret: the wrong secret, which no message may show.
        at_port: opens the sink for a server at this port of 127.0.0.1, which takes connections and never answers.
        limit_s: the longest that the sink may take to give up, in seconds.
        without: the checks that do not apply, of "bad record", "credentials" and "slow server", with the reason.

    """

    system: str
    promise: SinkPromise
    open: Callable[[], Sink]
    stored: Callable[[], Sequence[StoredRecord]]
    ordered: bool = False
    keyed: bool = False
    bad: str | None = None
    with_wrong_login: Callable[[], Sink] | None = None
    secret: str = ""
    at_port: Callable[[int], Sink] | None = None
    limit_s: float = 20.0
    without: Mapping[str, str] = field(default_factory=dict)
    record_type: RecordType = _RECORDS

    @property
    def holds_last(self) -> bool:
        """Whether a later record replaces an earlier one with the same id."""
        return self.keyed or self.promise == "idempotent by key"


def check_sink(sink: SinkUnderTest) -> Conformance:
    """Try everything that a sink must withstand, in some seconds. Its destination must be empty before."""
    checks: tuple[Callable[[_Trial], str | None], ...] = (
        _replay,
        _kill,
        _duplicates,
        _reorder,
        _partitions,
        _bad_record,
        _wrong_login,
        _slow_server,
    )
    with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as folder:
        bound = {
            name: _bound(check, _Trial(sink, folder, number))
            for number, (name, check) in enumerate(zip(SINK_CHECKS, checks, strict=True))
        }
        return Conformance(sink.system, "sink", sink.promise, run_checks(bound, sink.without, _EXCUSABLE))


def _bound(check: Callable[[_Trial], str | None], trial: _Trial) -> Callable[[], str | None]:
    return lambda: check(trial)


class _Trial:
    """One check, with its own ids and lineage, and the records that must be stored at its end."""

    def __init__(self, sink: SinkUnderTest, folder: str, number: int) -> None:
        self.under_test: Final = sink
        self.folder: Final = folder
        self.lineage: Final = uuid.uuid4().hex
        self._first: Final = number * _IDS_OF_A_CHECK
        self._next = self._first

    def start(self, lineage: str = "") -> _Driver:
        """Start a driver with a prepared sink."""
        lineage = lineage or self.lineage
        sink = self.under_test.open()
        known = sink.newest(lineage, self.folder)
        sink.prepare(lineage, self.folder)
        return _Driver(sink, lineage, self.under_test.record_type, known)

    def ids(self, count: int) -> list[int]:
        """Return ids that no other records have."""
        self._next += count
        return list(range(self._next - count, self._next))

    def stored(self) -> list[StoredRecord]:
        """Return the records of this check that are stored."""
        end = self._first + _IDS_OF_A_CHECK
        return [record for record in self.under_test.stored() if self._first <= record.id < end]

    def expect(self, ids: Sequence[int], when: str, *, jobs: int = 1, values: Mapping[int, str] = {}) -> None:
        """Check that these records are stored as the sink promises, when as many jobs have written them."""
        found: dict[int, list[StoredRecord]] = {number: [] for number in ids}
        for record in self.stored():
            if record.id not in found:
                raise Refuted(f"the record {record.id} is there, {when}, but no task should have written it.")
            found[record.id].append(record)
        for number, copies in found.items():
            if not copies:
                raise Refuted(f"the record {number} is missing {when}.")
            wanted = values.get(number, _value(number))
            wrong = next((copy.value for copy in copies if copy.value != wanted), None)
            if wrong is not None:
                raise Refuted(f"the record {number} is {wrong!r} instead of {wanted!r} {when}.")
            self._check_copies(number, copies, jobs, when)
        self._check_marks([copy for copies in found.values() for copy in copies])

    def _check_copies(self, number: int, copies: Sequence[StoredRecord], jobs: int, when: str) -> None:
        if self.under_test.promise == "at least once with ids":
            marks = {copy.mark for copy in copies}
            if None in marks:
                raise Refuted(f"the record {number} has no mark by which readers could skip copies.")
            if len(copies) < jobs or len(marks) > jobs:
                raise Refuted(
                    f"the record {number}, written by {jobs} jobs, is there {len(copies)} times with {len(marks)} "
                    f"marks {when}."
                )
            return
        if self.under_test.promise == "at least once":
            if len(copies) < jobs:
                raise Refuted(
                    f"the record {number}, written by {jobs} jobs, is there {len(copies)} times {when}."
                )
            return
        wanted = 1 if self.under_test.holds_last else jobs
        if len(copies) != wanted:
            raise Refuted(f"the record {number} is there {len(copies)} times instead of {wanted} {when}.")

    def _check_marks(self, records: Sequence[StoredRecord]) -> None:
        known: dict[str, int] = {}
        for record in records:
            if record.mark is not None and known.setdefault(record.mark, record.id) != record.id:
                raise Refuted(
                    f"the records {known[record.mark]} and {record.id} have the same mark {record.mark!r}."
                )


class _Driver:
    """A run of a job: the sink of its driver, of which each task gets a copy."""

    def __init__(self, sink: Sink, lineage: str, kind: RecordType, known: int) -> None:
        self.sink: Final = sink
        self.newest: Final = known
        self._lineage: Final = lineage
        self._kind: Final = kind
        self._versions: Final[dict[int, int]] = {}

    def _context(self, batch_id: int, partition: int, attempt: int) -> TaskContext:
        """Return the arguments of a task. All attempts of this run have the version of their micro-batch."""
        version = 0
        if isinstance(self.sink, VersionedSink):
            version = self._versions.setdefault(batch_id, next(_versions))
        return TaskContext(batch_id, partition, attempt, self._lineage, version)

    def task(self, batch_id: int, partition: int, attempt: int = 0) -> _Task:
        """Begin a task in a worker."""
        sink: Sink = pickle.loads(pickle.dumps(self.sink))  # it was pickled one line before
        context = self._context(batch_id, partition, attempt)
        return _Task(sink.task(context, self._kind), self._kind, partition)

    def write(self, batch_id: int, parts: Sequence[Sequence[int]], attempt: int = 0) -> list[bytes]:
        """Write a micro-batch, one sink partition after the other; return the messages of its tasks to the commit."""
        return [self.task(batch_id, partition, attempt).run(ids) for partition, ids in enumerate(parts)]

    def write_in(self, worker: StandingWorker, batch_id: int, partition: int, ids: Sequence[int]) -> None:
        """Write a part in another process, and do not finish it."""
        context = self._context(batch_id, partition, 0)
        worker.write(self.sink, context, self._kind, list(ids), [_value(number) for number in ids])

    def run(self, batch_id: int, parts: Sequence[Sequence[int]], attempt: int = 0) -> list[bytes]:
        """Write a micro-batch and commit it."""
        messages = self.write(batch_id, parts, attempt)
        self.sink.commit(batch_id, messages)
        return messages


class _Task:
    """A task of a sink partition that gets records by their ids."""

    def __init__(self, task: SinkTask, kind: RecordType, partition: int) -> None:
        self._task: Final = task
        self._kind: Final = kind
        self._partition: Final = partition

    def write(self, ids: Sequence[int], values: Sequence[str] | None = None) -> list[Rejection]:
        """Write a block; return the records that the destination does not accept."""
        texts = [_value(number) for number in ids] if values is None else list(values)
        write_block(self._task, self._kind, self._partition, list(ids), texts)
        return self._task.rejections() if isinstance(self._task, RejectingTask) else []

    def finish(self) -> bytes:
        """Finish the task."""
        return self._task.finish()

    def abort(self) -> None:
        """Abort the task."""
        self._task.abort()

    @property
    def can_reject(self) -> bool:
        """Whether the task can tell which records it leaves out."""
        return isinstance(self._task, RejectingTask)

    def run(self, ids: Sequence[int]) -> bytes:
        """Write records in two blocks, and finish."""
        half = len(ids) // 2
        for block in (ids[:half], ids[half:]):
            if block:
                self.write(block)
        return self.finish()


def _value(number: int) -> str:
    return f"value {number}"


def _replay(trial: _Trial) -> None:
    """The newest micro-batch comes again after a restart, in full, and then the next one."""
    driver = trial.start()
    if driver.newest != -1:
        raise Refuted(f"newest() is {driver.newest} for a lineage that has written nothing; it must be -1.")
    if driver.sink.exactly_once != (trial.under_test.promise == "exactly once"):
        raise Refuted(f"exactly_once of the sink is {driver.sink.exactly_once}, which its promise is not.")
    first, second, third = trial.ids(8), trial.ids(6), trial.ids(4)
    driver.run(0, [first[:5], first[5:]])
    driver.run(1, [second[:3], second[3:]])
    trial.expect([*first, *second], "after two micro-batches")
    driver = trial.start()
    if driver.newest not in (-1, 1):
        raise Refuted(
            f"newest() is {driver.newest} after micro-batch 1; it must be 1, or -1 if it is not known."
        )
    driver.run(1, [second[:3], second[3:]], attempt=1)
    trial.expect([*first, *second], "after micro-batch 1 was replayed")
    driver.run(2, [third[:2], third[2:]])
    trial.expect([*first, *second, *third], "after the replay and one more micro-batch")


def _kill(trial: _Trial) -> None:
    """A task fails, one is suspended while its second attempt finishes, one is killed, and so is a driver."""
    driver = trial.start()
    first, second, third, fourth, fifth = (trial.ids(4) for _ in range(5))
    failed = driver.task(0, 0)
    failed.write(first)
    failed.abort()
    with StandingWorker(trial.under_test.limit_s) as worker:
        driver.write_in(worker, 0, 1, second)
        driver.sink.commit(0, driver.write(0, [first, second], attempt=1))
        trial.expect([*first, *second], "after second attempts of two tasks")
        driver.run(1, [third[:2], third[2:]])
        worker.finish()
        written = [*first, *second, *third]
        trial.expect(written, "after an attempt that stood still finished behind the next micro-batch")
        driver.write_in(worker, 2, 0, fourth)
        worker.kill()
    driver.sink.commit(2, driver.write(2, [fourth], attempt=1))
    trial.expect([*written, *fourth], "after the process of a task was killed")
    driver.write(3, [fifth[:2], fifth[2:]])
    trial.start().run(3, [fifth[:2], fifth[2:]], attempt=1)
    trial.expect([*written, *fourth, *fifth], "after the driver died between the tasks and the commit")


def _duplicates(trial: _Trial) -> None:
    """Two attempts of a task finish, a commit is repeated, and another job writes the same records."""
    driver = trial.start()
    ids = trial.ids(6)
    driver.write(0, [ids[:3], ids[3:]])
    messages = driver.run(0, [ids[:3], ids[3:]], attempt=1)
    driver.sink.commit(0, messages)
    trial.expect(ids, "after two attempts of each task, and two commits")
    trial.start().sink.commit(0, messages)
    trial.expect(ids, "after the commit was repeated by another driver")
    trial.start(uuid.uuid4().hex).run(0, [ids[:3], ids[3:]])
    trial.expect(ids, "after another job has written the same records", jobs=2)


def _reorder(trial: _Trial) -> None:
    """Tasks finish in another order than they began; order within a partition, and the last record of a key, stay."""
    driver = trial.start()
    parts = [trial.ids(5) for _ in range(3)]
    tasks = [driver.task(0, partition) for partition in range(3)]
    for number in range(5):
        for task, ids in zip(reversed(tasks), reversed(parts), strict=True):
            task.write([ids[number]])
    messages = [task.finish() for task in reversed(tasks)]
    driver.sink.commit(0, list(reversed(messages)))
    written = [number for ids in parts for number in ids]
    trial.expect(written, "after tasks that finished in another order")
    if trial.under_test.ordered:
        _check_order(trial, parts)
    if trial.under_test.holds_last:
        driver.sink.commit(1, [_twice(driver.task(1, 0), parts[0])])
        values = {number: f"new {number}" for number in parts[0]}
        trial.expect(written, "after a micro-batch with two records of each key", values=values)


def _twice(task: _Task, ids: Sequence[int]) -> bytes:
    task.write(ids, [f"old {number}" for number in ids])
    task.write(ids, [f"new {number}" for number in ids])
    return task.finish()


def _check_order(trial: _Trial, parts: Sequence[Sequence[int]]) -> None:
    arrived = list(dict.fromkeys(record.id for record in trial.stored()))
    for ids in parts:
        if [number for number in arrived if number in ids] != list(ids):
            raise Refuted("the records of a sink partition arrived in another order than they were written.")


def _partitions(trial: _Trial) -> None:
    """Many tasks write at the same time, some of them nothing; then a micro-batch has no records at all."""
    driver = trial.start()
    parts = [trial.ids(count) for count in (0, 1, 60, 0, 3, 20)]
    tasks = [driver.task(0, partition) for partition in range(len(parts))]
    for task, ids in zip(tasks, parts, strict=True):
        task.write(ids)
    driver.sink.commit(0, [task.finish() for task in tasks])
    written = [number for ids in parts for number in ids]
    trial.expect(written, "after six tasks")
    driver.sink.commit(1, [driver.task(1, partition).finish() for partition in range(len(parts))])
    trial.expect(written, "after a micro-batch without records")


def _bad_record(trial: _Trial) -> None:
    """One record of a block is refused: it is rejected with a reason, others are written, a replay does the same."""
    bad = trial.under_test.bad
    if bad is None:
        raise Refuted(
            "give `bad`, a value that the destination refuses, or say in `without` that there is none."
        )
    driver = trial.start()
    ids = trial.ids(5)
    values = [bad if place == 3 else _value(number) for place, number in enumerate(ids)]
    for attempt in (0, 1):
        task = driver.task(0, 0, attempt)
        if not task.can_reject:
            raise Refuted("the task cannot reject a record; derive it from RejectingTask.")
        rejected = task.write(ids, values)
        driver.sink.commit(0, [task.finish()])
        if [one.row for one in rejected] != [3]:
            raise Refuted(
                f"attempt {attempt} rejects the rows {[one.row for one in rejected]} instead of row 3, which is bad."
            )
        if not rejected[0].reason or not rejected[0].raw:
            raise Refuted("a rejection has no reason or no bytes for the dead letter.")
        trial.expect([*ids[:3], *ids[4:]], f"after attempt {attempt} with a bad record")


def _wrong_login(trial: _Trial) -> None:
    """The destination refuses the login: there is an error with a remedy, and nothing is written."""
    case = trial.under_test
    if case.with_wrong_login is None:
        raise Refuted("give `with_wrong_login`, or say in `without` that there is no login.")
    opened = case.with_wrong_login
    rejects_within(case.limit_s, lambda: _write_one(trial, opened()), case.secret)
    trial.expect([], "after a login that was refused")


def _slow_server(trial: _Trial) -> str:
    """The server takes connections and does not answer: the sink gives up in time, with an error."""
    case = trial.under_test
    if case.at_port is None:
        raise Refuted("give `at_port`, or say in `without` that there is no server.")
    opened = case.at_port
    with silent_server() as port:
        rejects_within(case.limit_s, lambda: _write_one(trial, opened(port)))
    return f"within {case.limit_s:g} s"


def _write_one(trial: _Trial, sink: Sink) -> None:
    sink.newest(trial.lineage, trial.folder)
    sink.prepare(trial.lineage, trial.folder)
    _Driver(sink, trial.lineage, trial.under_test.record_type, -1).run(0, [trial.ids(1)])
