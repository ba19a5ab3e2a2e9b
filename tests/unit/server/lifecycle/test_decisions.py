"""Decisions: total and legal for all records and observations, and right in a world where everything fails."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.server.lifecycle.decisions import (
    GRACE_MS,
    HINDERED_MS,
    Decision,
    Driver,
    DriverState,
    Effect,
    End,
    EndKind,
    JobFacts,
    decide,
    may_want,
)
from penstock.server.lifecycle.restarts import FixedDelay, NoRestart, RestartHistory, RestartStrategy
from penstock.server.lifecycle.statuses import ENDED, TRANSITIONS, WITH_DRIVER, Desired, JobStatus

DRIVERS: Final = [
    Driver(DriverState.NONE),
    Driver(DriverState.UNLAUNCHED),
    Driver(DriverState.UNKNOWN),
    *(Driver(DriverState.ALIVE, working) for working in (False, True)),
    *(
        Driver(DriverState.ENDED, end=End(kind, "it ended", stop_done))
        for kind in EndKind
        for stop_done in (False, True)
    ),
]


def all_facts() -> Iterator[JobFacts]:
    strategies: list[RestartStrategy] = [NoRestart(), FixedDelay(1, 500)]
    for status, desired, strategy, needs, signalled, since in itertools.product(
        JobStatus, Desired, strategies, (False, True), (None, 0, 900), (0, 900, 5000)
    ):
        yield JobFacts("job", status, desired, strategy, RestartHistory(), since, 500, signalled, needs)


def test_decisions_are_total_and_legal() -> None:
    """Each combination of job and driver has a decision, each decision is legal, and each transition is used."""
    made = {status: set[JobStatus]() for status in JobStatus}
    for job, driver in itertools.product(all_facts(), DRIVERS):
        decision = decide(job, driver, 1000)
        assert decision == decide(job, driver, 1000)
        if decision.status is not None:
            made[job.status].add(decision.status)
            assert decision.reason
            # Recording comes first, so that no effect depends on unrecorded facts.
            assert decision.effect is None
    assert made == {status: set(after) for status, after in TRANSITIONS.items()}


def test_only_what_cannot_be_seen_or_is_as_wanted_is_let_be() -> None:
    """Without an action the job is as wanted, has ended, or waits."""
    for job, driver in itertools.product(all_facts(), DRIVERS):
        decision = decide(job, driver, 1000)
        if decision != Decision():
            continue
        assert (
            driver.state is DriverState.UNKNOWN
            or job.status in ENDED
            or job.status is job.desired.status
            or (job.status is JobStatus.STARTING and not driver.working)
        )


def facts(status: JobStatus, desired: Desired = Desired.RUNNING, **more: Any) -> JobFacts:
    return dataclasses.replace(JobFacts("job", status, desired, FixedDelay(1, 500)), **more)


ALIVE = Driver(DriverState.ALIVE, working=True)


def ended(kind: EndKind, *, stop_done: bool = False) -> Driver:
    return Driver(DriverState.ENDED, end=End(kind, "why", stop_done))


def test_a_cancel_terminates_then_kills() -> None:
    """SIGTERM comes at once, SIGKILL after the grace period, and CANCELED only once no driver is left."""
    job = facts(JobStatus.RUNNING, Desired.CANCELED)
    assert decide(job, ALIVE, 0).status is JobStatus.STOPPING
    job = dataclasses.replace(job, status=JobStatus.STOPPING)
    told = decide(job, ALIVE, 0)
    assert (told.effect, told.signals) == (Effect.TERMINATE, True)
    job = dataclasses.replace(job, signalled_ms=0)
    assert decide(job, ALIVE, GRACE_MS - 1) == Decision(wait_ms=1)
    assert decide(job, ALIVE, GRACE_MS).effect is Effect.KILL
    assert decide(job, ended(EndKind.KILLED), GRACE_MS).status is JobStatus.CANCELED


def test_a_clock_that_went_back_ends_waits() -> None:
    """No wait lasts until a time that may be years away."""
    restarting = facts(JobStatus.RESTARTING, since_ms=10**12, delay_ms=500)
    assert decide(restarting, ended(EndKind.KILLED), 5).status is JobStatus.STARTING
    canceled = facts(JobStatus.STOPPING, Desired.CANCELED, signalled_ms=10**12)
    assert decide(canceled, ALIVE, 5).effect is Effect.KILL


def test_a_failure_waits_as_its_strategy_says() -> None:
    """The reason has the failure and the strategy's response."""
    decision = decide(facts(JobStatus.RUNNING), ended(EndKind.KILLED), 1000)
    assert (decision.status, decision.delay_ms) == (JobStatus.RESTARTING, 500)
    assert decision.reason == "why (restart 1 of 1)"
    assert decision.history is not None
    waiting = facts(JobStatus.RESTARTING, since_ms=1000, delay_ms=500, history=decision.history)
    assert decide(waiting, ended(EndKind.KILLED), 1200) == Decision(wait_ms=300)
    again = dataclasses.replace(waiting, status=JobStatus.RUNNING)
    assert decide(again, ended(EndKind.FAILED), 3000).status is JobStatus.FAILED


def test_what_a_restart_cannot_heal_fails_at_once() -> None:
    """The strategy does not matter."""
    assert decide(facts(JobStatus.STARTING), ended(EndKind.REFUSED), 0).status is JobStatus.FAILED


def test_a_stop_with_a_savepoint_is_done_when_the_savepoint_is() -> None:
    """A driver that dies before is restarted; a plain stop is then done."""
    for needs, done, after in (
        (True, False, JobStatus.RESTARTING),
        (True, True, JobStatus.FINISHED),
        (False, False, JobStatus.FINISHED),
    ):
        job = facts(JobStatus.STOPPING, Desired.FINISHED, stop_needs_driver=needs)
        assert decide(job, ended(EndKind.KILLED, stop_done=done), 0).status is after


def test_a_job_that_is_resumed_while_it_pauses_is_started_again() -> None:
    """There is no delay, and it does not count as a failure."""
    decision = decide(facts(JobStatus.STOPPING), ended(EndKind.STOPPED), 0)
    assert (decision.status, decision.delay_ms) == (JobStatus.RESTARTING, 0)
    assert decision.history == RestartHistory()


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Desired, Desired)))
def test_what_may_be_wanted(before: Desired, after: Desired) -> None:
    """Pause and resume alternate; a stop may become a cancel; a cancel is final."""
    wanted = {
        Desired.RUNNING: set(Desired),
        Desired.PAUSED: set(Desired),
        Desired.FINISHED: {Desired.CANCELED},
        Desired.CANCELED: set(),
    }
    assert may_want(before, after) == (after in wanted[before])


# The world


@dataclass
class Run:
    """A run in the view of the file system and the kernel."""

    launched: bool = False
    voided: bool = False
    alive: bool = False
    working: bool = False
    asked: bool = False
    signalled: bool = False
    end: End | None = None

    def seen(self) -> Driver:
        if self.alive:
            return Driver(DriverState.ALIVE, self.working)
        if self.launched:
            return Driver(DriverState.ENDED, end=self.end or End(EndKind.KILLED, "killed"))
        if self.voided:
            return Driver(DriverState.ENDED, end=End(EndKind.VOIDED, "voided"))
        return Driver(DriverState.UNLAUNCHED)

    def finish(self, kind: EndKind) -> None:
        self.end = End(kind, kind.value, stop_done=self.asked and kind is EndKind.STOPPED)
        self.alive = False

    def kill(self) -> None:
        self.alive = False

    def step(self, event: str) -> None:
        """Advance the driver, by itself or on request."""
        if not self.alive:
            return
        if event == "goes on":
            if self.signalled or (self.asked and self.working):
                self.finish(EndKind.STOPPED)
            self.working = True
        elif event == "dies":
            self.kill()
        elif event == "fails":
            self.finish(EndKind.FAILED)
        elif event == "is refused":
            self.finish(EndKind.REFUSED)
        elif event == "finishes":
            self.finish(EndKind.FINISHED)
        elif event == "is stopped from outside":
            self.finish(EndKind.STOPPED)


@dataclass
class World:
    """One job in a store, its runs, and managers at any stage of their work."""

    job: JobFacts
    epoch: int = 0
    version: int = 0
    leader: int = 1
    now_ms: int = 1_000_000
    runs: dict[int, Run] = field(default_factory=dict)
    statuses: list[JobStatus] = field(default_factory=list)

    def observe(self) -> Driver:
        return self.runs[self.epoch].seen() if self.epoch else Driver(DriverState.NONE)

    def manager(self, leader: int) -> Iterator[str]:
        """One pass over the job in steps, between which anything may happen; dropped where a manager is killed."""
        job, epoch, version = self.job, self.epoch, self.version
        driver = self.observe()
        yield "observed"
        decision = decide(job, driver, self.now_ms)
        if decision.changes:
            yield "decided"
            if (leader, version) != (self.leader, self.version):
                return
            self.record(decision)
            yield "recorded"
        if decision.effect is not None:
            yield "acts"
            self.act(decision.effect, epoch)

    def record(self, decision: Decision) -> None:
        self.version += 1
        changes: dict[str, object] = {}
        if decision.status is not None:
            assert decision.status in TRANSITIONS[self.job.status]
            self.statuses.append(decision.status)
            changes |= {"status": decision.status, "since_ms": self.now_ms, "delay_ms": decision.delay_ms}
            if decision.status is JobStatus.STARTING:
                self.epoch += 1
                self.runs[self.epoch] = Run()
                changes["signalled_ms"] = None
        if decision.history is not None:
            changes["history"] = decision.history
        if decision.signals:
            changes["signalled_ms"] = self.now_ms
        self.job = dataclasses.replace(self.job, **changes)

    def act(self, effect: Effect, epoch: int) -> None:
        """Act as processes.py does, under the lock of the run."""
        run = self.runs[epoch]
        if effect is Effect.LAUNCH and not (run.alive or run.launched or run.voided):
            run.launched = run.alive = True
        elif effect is Effect.VOID and not (run.alive or run.launched):
            run.voided = True
        elif effect is Effect.ASK_STOP and run.alive:
            run.asked = True
        elif effect is Effect.TERMINATE and run.alive:
            run.signalled = True
        elif effect is Effect.KILL:
            run.kill()

    def want(self, desired: Desired, *, needs_driver: bool) -> None:
        if self.job.status not in ENDED and may_want(self.job.desired, desired):
            needs = needs_driver and desired is Desired.FINISHED
            self.job = dataclasses.replace(self.job, desired=desired, stop_needs_driver=needs)
            self.version += 1

    def check(self) -> None:
        """Check the invariants."""
        alive = [epoch for epoch, run in self.runs.items() if run.alive]
        assert len(alive) <= 1, "a job runs twice"
        assert alive in ([], [self.epoch]), "a run of before is alive"
        if self.job.status not in WITH_DRIVER:
            assert not alive, f"a job that is {self.job.status} has a driver"
            assert all(run.launched or run.voided for run in self.runs.values()), "a launch may come late"


EVENTS: Final = ["goes on", "dies", "fails", "is refused", "finishes", "is stopped from outside"]
# Each byte is a step; Hypothesis generates byte strings quickly.
STEPS = st.binary(max_size=200)


@examples(60)
@given(STEPS, st.sampled_from([NoRestart(), FixedDelay(2, 1000), FixedDelay(1000, 0)]))
def test_jobs_end_up_as_wanted_and_never_run_twice(steps: bytes, strategy: RestartStrategy) -> None:
    """Drivers and managers die at any moment, three managers work at once, one leads, and clocks jump."""
    world = World(JobFacts("job", JobStatus.CREATED, Desired.RUNNING, strategy))
    managers: dict[int, Iterator[str]] = {}
    leads = [1, 0, 0]
    for step in steps:
        what, number = step % 8, step // 8
        who = number % 3
        if what < 4:
            managers.setdefault(who, world.manager(leads[who]))
            if next(managers[who], None) is None:
                del managers[who]
        elif what == 4 and number < 12:
            managers.pop(who, None)
        elif what == 4:
            world.leader += 1
            leads[who] = world.leader
        elif what == 5 and world.epoch:
            # Mostly it continues.
            world.runs[world.epoch].step(EVENTS[max(0, number - 26)])
        elif what == 6:
            world.now_ms += (1, 100, 1000, 10_000, -100_000)[number % 5]
        elif what == 7 and number < 16:
            world.want(list(Desired)[number % 4], needs_driver=number % 8 >= 4)
        world.check()
    settle(world)
    world.check()
    check_end(world)


def settle(world: World) -> None:
    """Stop all faults: a new leader takes over the job, and its driver continues."""
    world.leader += 1
    for _ in range(40):
        for _ in world.manager(world.leader):
            world.check()
        world.now_ms += 1000
        if world.epoch:
            world.runs[world.epoch].step("goes on")


def check_end(world: World) -> None:
    """Check that the job is as the user wants, unless it has ended by itself."""
    job = world.job
    kinds = {run.end.kind for run in world.runs.values() if run.end is not None}
    if job.status is JobStatus.FAILED:
        gave_up = job.history.attempts >= getattr(job.strategy, "attempts", 0)
        assert EndKind.REFUSED in kinds or gave_up
        assert job.desired is Desired.RUNNING or job.stop_needs_driver
    elif job.status is JobStatus.FINISHED and job.desired is not Desired.FINISHED:
        assert EndKind.FINISHED in kinds
    else:
        assert job.status is job.desired.status
    if job.status is JobStatus.RUNNING:
        assert world.runs[world.epoch].alive
        assert world.runs[world.epoch].working


@pytest.mark.parametrize("stop_at", range(1, 5))
@pytest.mark.parametrize("desired", list(Desired))
def test_a_manager_that_is_killed_at_any_step_loses_nothing(stop_at: int, desired: Desired) -> None:
    """Each pass is interrupted after some steps; every second pass is by a manager that survives."""
    world = World(JobFacts("job", JobStatus.CREATED, Desired.RUNNING, NoRestart()))
    for look in range(30):
        if look == 8:
            world.want(desired, needs_driver=True)
        world.leader += 1
        steps = world.manager(world.leader)
        for _ in itertools.islice(steps, None if look % 2 else stop_at):
            world.check()
        if world.epoch:
            world.runs[world.epoch].step("goes on")
        world.now_ms += 1000
    check_end(world)
    assert world.job.status is desired.status
    assert world.epoch == 1


def test_what_the_system_hinders_is_tried_again_as_often_as_needed() -> None:
    """A full disk does not count as a failure of the job; with `NoRestart` the job still fails."""
    job = facts(JobStatus.RUNNING)
    for _ in range(5):
        decision = decide(job, ended(EndKind.HINDERED), 1000)
        assert (decision.status, decision.delay_ms) == (JobStatus.RESTARTING, HINDERED_MS)
        assert decision.history == job.history == RestartHistory()
        assert decision.reason == "why (restart in 10 s)"
    never = facts(JobStatus.RUNNING, strategy=NoRestart())
    assert decide(never, ended(EndKind.HINDERED), 1000).status is JobStatus.FAILED
    canceled = facts(JobStatus.RUNNING, Desired.CANCELED)
    assert decide(canceled, ended(EndKind.HINDERED), 1000).status is JobStatus.CANCELED
