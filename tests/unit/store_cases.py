"""What holds for a store on every database: the cases that the tests of SQLite and of PostgreSQL run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from threads_at_once import call_at_once

from penstock.errors import (
    IdempotencyError,
    JobChangedError,
    JobStateError,
    LeadershipLostError,
    StoreError,
    UnknownIdError,
)
from penstock.server.lifecycle.decisions import Decision, End, EndKind
from penstock.server.lifecycle.restarts import RestartHistory
from penstock.server.lifecycle.statuses import Desired, IllegalTransitionError, JobStatus
from penstock.server.store.database import METADATA, jobs
from penstock.server.store.row_types import JobRow, NewJob, OperationRow, Stop
from penstock.server.store.store import Store
from penstock.server.store.transactions import Transactions
from penstock.server.store.user_requests import MANAGER, Asked

LEASE_MS = 60_000
Opens: TypeAlias = Callable[[], Transactions]


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def new_job(name: str = "one", **more: Any) -> NewJob:
    values = {
        "id": f"job-{name}",
        "name": name,
        "definition": "tally",
        "settings": {"bindings": {"hits": "jsonl:/in"}},
        "checkpoint": f"/checkpoints/{name}",
        "restart": "fixed-delay:attempts=3,delay=10s",
    }
    return NewJob(**{**values, **more})


def asks(kind: Any = "submit", who: str = "ann", key: str | None = None, **arguments: Any) -> Asked:
    return Asked(who, kind, arguments, key)


def become(store: Store, leader: int, job_id: str, *statuses: JobStatus, end: End | None = None) -> JobRow:
    """A job takes one status after the other."""
    job = store.job(job_id)
    for status in statuses:
        job = store.record(leader, job, Decision(status, reason="so it is"), host="here", end=end)
    return job


class StoreCases:
    """The cases. A class of tests opens an empty database, as often as it is called."""

    @pytest.fixture
    def opens(self) -> Opens:
        raise NotImplementedError

    def note_later_version(self, opens: Opens) -> None:
        """Do what a later version of penstock does."""
        later = sa.text("UPDATE alembic_version SET version_num = '9999'")
        opened = opens()
        opened.write(lambda connection: connection.execute(later))
        opened.close()

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def store(self, opens: Opens, clock: Clock) -> Iterator[Store]:
        opened = Store(opens(), clock)
        yield opened
        opened.close()

    @pytest.fixture
    def leader(self, store: Store) -> int:
        epoch = store.lead("first", LEASE_MS)
        assert epoch is not None
        return epoch

    # Looking

    def test_jobs_come_in_parts(self, store: Store, clock: Clock, leader: int) -> None:
        """Newest first, by their ids where they are as new; each part continues after a job, also one that is gone."""
        for number, name in enumerate(("d", "c", "b", "a")):
            clock.ms += number // 2
            store.submit(new_job(name), asks())
        become(store, leader, "job-c", JobStatus.CANCELED)
        order = [(job.created_ms, job.id) for job in store.jobs()]
        assert [job_id for _, job_id in order] == ["job-a", "job-b", "job-c", "job-d"]
        for place in range(4):
            found = store.jobs(limit=2, after=order[place])
            assert [job.id for job in found] == [job_id for _, job_id in order[place + 1 : place + 3]]
        live = store.jobs(set(JobStatus) - {JobStatus.CANCELED}, after=order[1])
        assert [job.id for job in live] == ["job-d"]
        assert store.jobs(after=(0, "")) == []

    # Migrations

    def test_migrations_make_the_tables_that_the_code_knows(self, opens: Opens) -> None:
        """From nothing; and once more changes nothing."""
        for _ in range(2):
            opened = opens()
            with opened.reading() as connection:
                context = MigrationContext.configure(connection, opts={"compare_type": True})
                assert compare_metadata(context, METADATA) == []
                assert context.get_current_revision() == "0001"
            opened.close()

    def test_several_processes_may_migrate_call_at_once(self, opens: Opens) -> None:
        """Each finds the tables made, by itself or another."""
        failed: list[BaseException] = []

        def open_it() -> None:
            try:
                opens().close()
            except BaseException as e:
                failed.append(e)

        call_at_once([open_it] * 4)
        assert failed == []

    def test_a_store_of_a_later_version_is_refused(self, opens: Opens) -> None:
        """With what to do about it; nothing is changed."""
        self.note_later_version(opens)
        with pytest.raises(StoreError, match=r"another version of penstock .*9999.* newest version"):
            opens()

    # Jobs

    def test_a_job_comes_back_as_it_was_submitted(self, store: Store, clock: Clock) -> None:
        """With its settings, whoever submitted it, and an operation that is done."""
        settings = {"bindings": {"hits": "jsonl:/in", "ü": "x'\"%"}, "parallelism": None, "strict": True}
        operation = store.submit(new_job(settings=settings), asks(definition="tally"))
        assert (operation.state, operation.result) == ("DONE", {"job": "job-one"})
        job = store.job("job-one")
        assert job == JobRow(
            id="job-one",
            name="one",
            definition="tally",
            settings=settings,
            checkpoint="/checkpoints/one",
            restart="fixed-delay:attempts=3,delay=10s",
            created_ms=clock.ms,
            created_by="ann",
            desired=Desired.RUNNING,
            stop=None,
            status=JobStatus.CREATED,
            reason="a user submitted it",
            since_ms=clock.ms,
            delay_ms=0,
            signalled_ms=None,
            history=RestartHistory(),
            epoch=0,
            version=1,
        )
        assert store.operation(operation.id) == operation

    def test_what_is_not_there_is_told(self, store: Store, leader: int) -> None:
        """With the id that was asked for."""
        for look in (
            lambda: store.job("job-x"),
            lambda: store.operation("job-x"),
            # PostgreSQL takes no such text.
            lambda: store.job("\0job-x"),
            lambda: store.operation("\0job-x"),
            lambda: store.run("job-x", 3),
            lambda: store.set_desired("job-x", Desired.CANCELED, asks("cancel")),
            lambda: store.begin_operation("job-x", asks("savepoint")),
        ):
            with pytest.raises(UnknownIdError, match="job-x"):
                look()

    def test_two_live_jobs_never_have_one_checkpoint(self, store: Store, leader: int) -> None:
        """The second is refused, and may come when the first is over."""
        store.submit(new_job(), asks())
        again = new_job("two", checkpoint="/checkpoints/one")
        with pytest.raises(JobStateError, match=r"job-one uses this checkpoint, and has not ended"):
            store.submit(again, asks())
        become(store, leader, "job-one", JobStatus.CANCELED)
        store.submit(again, asks())
        assert [job.id for job in store.live_jobs()] == ["job-two"]

    def test_jobs_are_listed_newest_first(self, store: Store, clock: Clock, leader: int) -> None:
        """Of the statuses that are asked for."""
        for number in range(5):
            clock.ms += 1
            store.submit(new_job(f"{number}"), asks())
        become(store, leader, "job-2", JobStatus.STARTING)
        become(store, leader, "job-3", JobStatus.FINISHED)
        assert [job.name for job in store.jobs()] == ["4", "3", "2", "1", "0"]
        assert [job.name for job in store.jobs(limit=2)] == ["4", "3"]
        assert [job.name for job in store.jobs({JobStatus.STARTING, JobStatus.FINISHED})] == ["3", "2"]

    # Decisions

    def test_a_decision_is_recorded_with_run_and_event(self, store: Store, clock: Clock, leader: int) -> None:
        """STARTING is a new run; each status comes with its reason, time and event."""
        store.submit(new_job(), asks())
        clock.ms += 5
        job = become(store, leader, "job-one", JobStatus.STARTING)
        assert (job.status, job.epoch, job.since_ms) == (JobStatus.STARTING, 1, clock.ms)
        run = store.run("job-one", 1)
        assert (run.host, run.pid, run.ended_ms) == ("here", None, None)
        store.note_process(leader, run, 4711, 99, "boot")
        clock.ms += 5
        store.note_end(leader, run, End(EndKind.KILLED, "it was killed"), -9)
        run = store.run("job-one", 1)
        assert (run.pid, run.started_ticks, run.boot) == (4711, 99, "boot")
        assert (run.end_kind, run.exit_code, run.why, run.ended_ms) == (
            "KILLED",
            -9,
            "it was killed",
            clock.ms,
        )
        store.note_end(leader, run, End(EndKind.FAILED, "seen again"), 1)
        assert store.run("job-one", 1) == run
        waits = Decision(JobStatus.RESTARTING, reason="died", history=RestartHistory(1, 1), delay_ms=70)
        job = store.record(leader, job, waits)
        assert (job.history, job.delay_ms) == (RestartHistory(1, 1), 70)
        job = become(store, leader, "job-one", JobStatus.STARTING)
        assert [run.epoch for run in store.runs("job-one")] == [2, 1]
        told = [(event.who, event.what, event.detail.get("to")) for event in store.events("job-one")]
        assert told == [
            ("ann", "asked for: submit", None),
            (MANAGER, "status", "STARTING"),
            (MANAGER, "status", "RESTARTING"),
            (MANAGER, "status", "STARTING"),
        ]

    def test_a_checkpoint_that_a_job_has_run_with_is_known(self, store: Store, leader: int) -> None:
        """From RUNNING on; for the next job with it as well, and for no other."""
        store.submit(new_job(), asks())
        store.submit(new_job("two"), asks())
        become(store, leader, "job-one", JobStatus.STARTING)
        assert not store.has_run("/checkpoints/one")
        become(store, leader, "job-one", JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.STARTING)
        become(store, leader, "job-two", JobStatus.STARTING)
        assert store.has_run("/checkpoints/one")
        assert not store.has_run("/checkpoints/two")

    def test_signals_are_recorded_until_the_next_run(self, store: Store, clock: Clock, leader: int) -> None:
        """So that a grace continues when another manager takes over."""
        store.submit(new_job(), asks())
        job = become(store, leader, "job-one", JobStatus.STARTING, JobStatus.STOPPING)
        job = store.record(leader, job, Decision(signals=True))
        assert (job.signalled_ms, job.status) == (clock.ms, JobStatus.STOPPING)
        job = become(store, leader, "job-one", JobStatus.RESTARTING, JobStatus.STARTING)
        assert job.signalled_ms is None

    def test_a_decision_on_what_was_is_refused(self, store: Store, leader: int) -> None:
        """Whatever has changed the job since: a user, or the leader itself."""
        store.submit(new_job(), asks())
        seen = store.job("job-one")
        store.set_desired("job-one", Desired.PAUSED, asks("pause"))
        start = Decision(JobStatus.STARTING, reason="late")
        with pytest.raises(JobChangedError, match="job-one"):
            store.record(leader, seen, start)
        now = store.record(leader, store.job("job-one"), start)
        with pytest.raises(JobChangedError, match="job-one"):
            store.record(leader, store.job("job-one").__class__(**{**as_dict(now), "epoch": 0}), Decision())
        assert [run.epoch for run in store.runs("job-one")] == [1]

    def test_an_illegal_transition_is_refused(self, store: Store, leader: int) -> None:
        """The table of statuses holds at the store as well."""
        store.submit(new_job(), asks())
        with pytest.raises(IllegalTransitionError):
            become(store, leader, "job-one", JobStatus.RUNNING)
        assert store.job("job-one").status is JobStatus.CREATED

    def test_of_many_decisions_at_once_one_is_recorded(self, store: Store, leader: int) -> None:
        """The others find the job changed."""
        store.submit(new_job(), asks())
        seen = store.job("job-one")
        outcomes: list[str] = []

        def decide() -> None:
            try:
                store.record(leader, seen, Decision(JobStatus.STARTING, reason="now"))
                outcomes.append("recorded")
            except JobChangedError:
                outcomes.append("changed")

        call_at_once([decide] * 6)
        assert sorted(outcomes) == ["changed"] * 5 + ["recorded"]
        assert len(store.runs("job-one")) == 1

    # Leading

    def test_one_leads_until_its_lease_ends(self, store: Store, clock: Clock) -> None:
        """It leads as long as it asks in time; a manager that resigns gives way at once."""
        assert store.lead("a", LEASE_MS) == 1
        assert store.lead("b", LEASE_MS) is None
        assert store.lead("a", LEASE_MS) == 1
        store.resign("b")
        assert store.lead("b", LEASE_MS) is None
        store.resign("a")
        assert store.lead("b", LEASE_MS) == 2
        assert store.lead("a", LEASE_MS) is None

    def test_who_led_before_changes_nothing(self, store: Store) -> None:
        """Each change by the leader is compared with the epoch that leads."""
        old = store.lead("a", LEASE_MS)
        assert old is not None
        store.submit(new_job(), asks())
        job = become(store, old, "job-one", JobStatus.STARTING)
        run = store.run("job-one", 1)
        operation = store.begin_operation("job-one", asks("savepoint"))
        store.resign("a")
        assert store.lead("b", LEASE_MS) == old + 1
        before = (store.jobs(), store.runs("job-one"), store.events(), store.operation(operation.id))
        for change in (
            lambda: store.check_leader(old),
            lambda: store.record(old, job, Decision(JobStatus.RUNNING, reason="late")),
            lambda: store.note_process(old, run, 1, 1, "boot"),
            lambda: store.note_end(old, run, End(EndKind.KILLED, "late"), -9),
            lambda: store.mark_operation_running(old, operation),
            lambda: store.end_operation(old, operation, result={}),
        ):
            with pytest.raises(LeadershipLostError, match=r"its epoch is 2, this one's 1"):
                change()
        assert before == (store.jobs(), store.runs("job-one"), store.events(), store.operation(operation.id))

    def test_many_that_want_to_lead_get_one_leader(self, opens: Opens, store: Store) -> None:
        """At the same moment, and from several processes' connections."""
        stores = [Store(opens()) for _ in range(4)]
        found: list[int | None] = []
        call_at_once([lambda s=s, n=n: found.append(s.lead(f"m{n}", LEASE_MS)) for n, s in enumerate(stores)])
        assert sorted(found, key=str) == [1, None, None, None]
        for opened in stores:
            opened.close()

    # Wishes and operations

    def test_the_last_wish_holds(self, store: Store, leader: int) -> None:
        """One that is overtaken has failed, and says by what; one that is true already is done."""
        store.submit(new_job(), asks())
        pause = store.set_desired("job-one", Desired.PAUSED, asks("pause"))
        assert pause.state == "PENDING"
        become(store, leader, "job-one", JobStatus.PAUSED)
        assert store.operation(pause.id).state == "DONE"
        assert store.set_desired("job-one", Desired.PAUSED, asks("pause")).state == "DONE"
        resume = store.set_desired("job-one", Desired.RUNNING, asks("resume"))
        stop = store.set_desired(
            "job-one", Desired.FINISHED, asks("stop"), Stop("op-stop", "sp-1", "/sp/sp-1")
        )
        assert stop.id == "op-stop"
        overtaken = store.operation(resume.id)
        assert (overtaken.state, overtaken.error) == ("FAILED", "A user has since requested FINISHED.")
        assert store.job("job-one").stop == Stop("op-stop", "sp-1", "/sp/sp-1")
        with pytest.raises(JobStateError, match="FINISHED is already requested"):
            store.set_desired("job-one", Desired.RUNNING, asks("resume"))
        store.set_desired("job-one", Desired.CANCELED, asks("cancel"))
        assert store.job("job-one").stop is None

    def test_a_stop_tells_what_it_left(self, store: Store, leader: int) -> None:
        """Its savepoint, or why there is none; a job that ended by itself was not stopped."""
        stopped = End(EndKind.STOPPED, "told to", stop_done=True, details={"savepoint": "sp-1"})
        unsaved = End(EndKind.STOPPED, "told to", stop_done=True, stop_error="The disk is full.")
        for number, (end, state, result, error) in enumerate(
            [
                (stopped, "DONE", {"savepoint": "sp-1"}, None),
                (unsaved, "FAILED", None, "The disk is full."),
                (End(EndKind.FINISHED, "done"), "FAILED", None, "by itself"),
            ]
        ):
            store.submit(new_job(f"{number}"), asks())
            operation = store.set_desired(
                f"job-{number}", Desired.FINISHED, asks("stop"), Stop(f"op-{number}", "sp-1", "/sp-1")
            )
            become(store, leader, f"job-{number}", JobStatus.STARTING)
            become(store, leader, f"job-{number}", JobStatus.FINISHED, end=end)
            found = store.operation(operation.id)
            assert (found.state, found.result) == (state, result)
            assert error is None if found.error is None else error in found.error

    def test_a_job_that_is_over_stays_so(self, store: Store, leader: int) -> None:
        """What lasts of it has failed, but a savepoint may be taken of its checkpoint still."""
        store.submit(new_job(), asks())
        rescale = store.begin_operation("job-one", asks("rescale", parallelism=2))
        become(store, leader, "job-one", JobStatus.CANCELED)
        assert store.operation(rescale.id).error == "The job became CANCELED before the operation was done."
        with pytest.raises(JobStateError, match="is CANCELED, which is final"):
            store.set_desired("job-one", Desired.RUNNING, asks("resume"))
        savepoint = store.begin_operation("job-one", asks("savepoint"))
        assert store.unfinished_operations(["savepoint", "rescale"]) == [savepoint]

    def test_operations_go_their_way(self, store: Store, clock: Clock, leader: int) -> None:
        """PENDING, RUNNING, and one end that stays."""
        store.submit(new_job(), asks())
        operation = store.begin_operation("job-one", asks("savepoint", to="sp"), "op-mine")
        assert (operation.id, operation.state) == ("op-mine", "PENDING")
        store.mark_operation_running(leader, operation)
        assert store.operation("op-mine").state == "RUNNING"
        clock.ms += 9
        store.end_operation(leader, operation, result={"savepoint": "sp-1"})
        store.end_operation(leader, operation, error="late")
        store.mark_operation_running(leader, operation)
        found = store.operation("op-mine")
        assert (found.state, found.result, found.error) == ("DONE", {"savepoint": "sp-1"}, None)
        assert found.ended_ms == clock.ms
        assert store.unfinished_operations(["savepoint"]) == []

    def test_a_request_is_done_once(self, store: Store) -> None:
        """The same key of the same user gives the same operation; with another request it is refused."""
        first = store.submit(new_job(), asks(key="k", definition="tally"))
        again = store.submit(new_job("two"), asks(key="k", definition="tally"))
        assert again == first
        assert [job.id for job in store.jobs()] == ["job-one"]
        with pytest.raises(IdempotencyError, match=rf"'k' .* {first.id}"):
            store.submit(new_job("two"), asks(key="k", definition="other"))
        with pytest.raises(IdempotencyError):
            store.set_desired("job-one", Desired.PAUSED, asks("pause", key="k"))
        store.submit(new_job("three"), asks(who="bob", key="k", definition="tally"))
        pauses = [store.set_desired("job-one", Desired.PAUSED, asks("pause", key="p")) for _ in range(3)]
        assert len({pause.id for pause in pauses}) == 1
        assert store.job("job-one").version == 2

    def test_the_same_request_at_the_same_moment_is_done_once(self, store: Store) -> None:
        """However the threads come."""
        found: list[OperationRow] = []
        asked = asks(key="k", definition="d")
        call_at_once([lambda n=n: found.append(store.submit(new_job(f"{n}"), asked)) for n in range(6)])
        assert len({operation.id for operation in found}) == 1
        assert len(found) == 6
        assert len(store.jobs()) == 1

    # Events

    def test_events_are_read_on(self, store: Store) -> None:
        """In order, from where one was, of one job or of all."""
        for number in range(5):
            store.add_event("a" if number % 2 else None, f"event {number}", {"n": number}, who="ann")
        everything = store.events()
        assert [event.what for event in everything] == [f"event {n}" for n in range(5)]
        assert store.events(after=everything[2].id) == everything[3:]
        assert store.events(after=everything[0].id, limit=2) == everything[1:3]
        assert [event.detail for event in store.events("a")] == [{"n": 1}, {"n": 3}]

    @pytest.mark.parametrize("statement", ["UPDATE events SET who = 'eve'", "DELETE FROM events"])
    def test_events_are_only_added(self, opens: Opens, store: Store, statement: str) -> None:
        """The database refuses to change or delete one."""
        store.add_event(None, "told")
        before = store.events()
        opened = opens()
        with pytest.raises(Exception, match="events are only added"):
            opened.write(lambda connection: connection.execute(sa.text(statement)))
        opened.close()
        assert store.events() == before

    def test_a_transaction_that_fails_leaves_nothing(self, store: Store, leader: int) -> None:
        """A status never changes without its event."""
        store.submit(new_job(), asks())
        before = (store.jobs(), store.events())
        failing = Decision(JobStatus.STARTING, reason="x")
        object.__setattr__(failing, "reason", object())
        with pytest.raises(Exception):  # noqa: B017  # whatever the database says of it
            store.record(leader, store.job("job-one"), failing)
        assert (store.jobs(), store.events()) == before
        assert store.runs("job-one") == []

    def test_jobs_with_runs_stay(self, opens: Opens, store: Store, leader: int) -> None:
        """Foreign keys are on."""
        store.submit(new_job(), asks())
        become(store, leader, "job-one", JobStatus.STARTING)
        opened = opens()
        with pytest.raises(sa.exc.IntegrityError):
            opened.write(lambda connection: connection.execute(jobs.delete()))
        opened.close()


def as_dict(job: JobRow) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}
