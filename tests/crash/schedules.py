"""Random schedules: a scenario with crashes and faults of disk and brokers, generated from a seed and run to
its end.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from crash_jobs import JOBS, Row
from crash_model import POWER_LOSSES, Loss, after_power_loss
from crash_trials import Outcome, judge, resumed
from disk_tree import Op
from life import Action, Life, Run, Scenario
from recording_broker import Refusal, RefusalKind
from recording_disk import Died
from run_kinds import ROOMS, adjustments, readings
from topic_kinds import EXACTLY_ONCE

from penstock.errors import PenstockError, fault_of

__all__ = ["Schedule", "Told", "live_schedule", "schedule"]

_MAX_STARTS = 12
_WITH_TOPICS = 0.3
# Like a restart strategy with growing delays.
_REFUSED_REST_S = 15.0


@dataclass(frozen=True)
class Fault:
    """A fault of one process: it dies after a number of operations, or its disk fails from there on.

    `loss` is what a power loss leaves, None for a kill. `code` is the error of the disk, for `count`
    operations.
    """

    at: int
    loss: Loss | None = None
    code: int | None = None
    count: int = 0
    stops: bool = False

    @property
    def kind(self) -> str:
        """Return the category under which it is counted."""
        if self.code is not None:
            return "full disk" if self.code == errno.ENOSPC else "I/O error"
        return "kill" if self.loss is None else "power loss"

    def __str__(self) -> str:
        if self.code is not None:
            return f"{self.kind} from operation {self.at} on, for {self.count}"
        more = f" ({self.loss})" if self.loss else ""
        return f"{self.kind}{more} at operation {self.at}{', then a stop during start' if self.stops else ''}"


@dataclass(frozen=True)
class Schedule:
    """A scenario, and the fault of each process in it; later processes have none.

    `refusals` are the faults of the brokers, whichever process runs then; `rest_s` is the delay before the
    job is restarted.
    """

    seed: int
    scenario: Scenario
    faults: tuple[Fault, ...]
    refusals: tuple[Refusal, ...] = ()
    rest_s: float = 1.0


@dataclass
class Told:
    """The result of a schedule: its faults, and the order of events."""

    outcome: Outcome
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def schedule(seed: int, *, power: bool = True) -> Schedule:
    """Return the schedule of a seed; without `power` it has no power losses."""
    chance = random.Random(seed)
    scenario = _scenario(chance)
    faults = tuple(_fault(chance, power=power) for _ in range(chance.choice((1, 1, 2, 2, 3))))
    # A separate random generator, so that the other schedules do not change.
    own = random.Random(f"{seed}/brokers")
    if own.random() >= _WITH_TOPICS:
        return Schedule(seed, scenario, faults)
    scenario = _on_topics(own, scenario)
    refusals = tuple(_refusal(own) for _ in range(own.choice((0, 1, 1, 2, 3))))
    return Schedule(seed, scenario, faults, refusals, own.choice((1.0, 20.0, 150.0)))


def _on_topics(own: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with topics in place of some folders."""
    job = scenario.job
    able = [*job.streams, *job.sinks]
    if job.name == "counts":
        able.append("dead-letters")
    if scenario.commands:
        able += ["commands", "receipts"]
    chosen = [name for name in able if own.random() < 0.6] or [able[-1]]
    options = {
        name: "delivery=at-least-once" if own.random() < 0.25 else EXACTLY_ONCE
        for name in chosen
        if name in (*job.sinks, "receipts", "dead-letters")
    }
    if own.random() < 0.3:
        options["readings"] = f"max_records_per_batch={own.randint(2, 9)}"
    runs = scenario.runs
    partitions = own.randint(1, 3)
    if job.name == "stateless" and "readings" in chosen:
        grow = Action("grow", partitions=partitions + own.randint(1, 2))
        runs = tuple(replace(run, actions=_with(own, run.actions, grow)) for run in runs)
    return replace(
        scenario,
        runs=runs,
        journaled=scenario.journaled and "readings" not in chosen,
        topics=frozenset(chosen),
        topic_options=options,
        partitions=partitions,
    )


def _with(own: random.Random, actions: tuple[Action, ...], more: Action) -> tuple[Action, ...]:
    at = own.randint(0, len(actions))
    return (*actions[:at], more, *actions[at:])


def _refusal(own: random.Random) -> Refusal:
    at = own.randint(1, own.choice((20, 60, 150)))
    kind: RefusalKind = own.choice(("away", "away", "moving", "answer lost", "request lost", "fenced"))
    seconds = own.choice((0.5, 5.0, 20.0, 60.0, 200.0)) if kind in ("away", "moving") else 0.0
    return Refusal(kind, at, seconds)


def _fault(chance: random.Random, *, power: bool) -> Fault:
    at = chance.randint(1, chance.choice((100, 300, 600)))
    kind = chance.random()
    if kind < 0.15:
        return Fault(at, code=errno.ENOSPC, count=chance.choice((1, 3, 20)))
    if kind < 0.3:
        return Fault(at, code=errno.EIO, count=chance.choice((1, 2)))
    loss = chance.choice(POWER_LOSSES) if power and kind < 0.6 else None
    return Fault(at, loss, stops=chance.random() < 0.25)


def _scenario(chance: random.Random) -> Scenario:
    job = JOBS[chance.choice([*JOBS, "counts", "counts", "two-sinks", "two-levels"])]
    files = [chance.randint(1, 5) for _ in range(chance.randint(2, 6))]
    takes = job.commanded is not None
    commands: tuple[Row, ...] = adjustments(chance.randint(0, 4)) if takes else ()
    actions = [Action("feed")] * len(files) + [Action("send")] * len(commands)
    feed: dict[str, list[list[Row]]] = {
        "readings": readings(files, bad=chance.randint(0, 40) if job.name == "counts" else None)
    }
    if "factors" in job.streams:
        feed["factors"] = [[{"room": chance.choice(ROOMS), "factor": n}] for n in range(1, 4)]
        actions += [Action("feed", stream="factors")] * 3
    actions += [Action("turn")] * chance.randint(1, 5)
    chance.shuffle(actions)
    if chance.random() < 0.3 and job.name != "stateless":
        actions.insert(chance.randint(0, len(actions)), Action("rescale", parallelism=chance.randint(1, 4)))
    runs = [*_cut(chance, actions), Run(bounded=job.name in ("windows", "timers"))]
    if chance.random() < 0.15 and job.name in ("counts", "two-levels", "two-sinks"):
        place = chance.randint(1, len(runs) - 1)
        before = runs[place - 1]
        ended = tuple(action for action in before.actions if action.kind != "stop")
        runs[place - 1] = Run((*ended, Action("turn"), Action("stop request", savepoint=True)))
        second = [Run(r.actions, r.bounded, r.early_stop, "second", True) for r in runs[place:]]
        runs = [*runs[:place], *second]
    return Scenario(
        job,
        tuple(runs),
        feed,
        commands,
        parallelism=chance.randint(1, 4),
        retained=chance.choice((100, 100, 3)),
        form=chance.choice(("jsonl", "jsonl", "csv", "parquet")) if job.name != "windows" else "jsonl",
        options={"readings": chance.choice(("", "?max_files_per_batch=1"))},
        journaled=chance.random() < 0.2 and job.name != "controlled",
    )


def _cut(chance: random.Random, actions: list[Action]) -> list[Run]:
    """Divide the actions among some runs, which are stopped in various ways."""
    runs: list[Run] = []
    while actions:
        count = chance.randint(1, len(actions))
        taken, actions = actions[:count], actions[count:]
        if chance.random() < 0.15:
            runs.append(Run(early_stop=True))
        end = chance.choice(((), (Action("stop"),), (Action("stop", late=True),)))
        runs.append(Run((*taken, *end)))
    return runs


def live_schedule(life: Life, wanted: Schedule) -> Told:
    """Run a schedule to its end, and check the final result."""
    life.seed = wanted.seed
    life.begin(wanted.scenario)
    life.brokers.refusals = [replace(refusal) for refusal in wanted.refusals]
    told = Told(Outcome("went on"))
    mark = (0, 0)
    power_failed = False
    waiting = list(wanted.faults)
    stops = False
    for _ in range(_MAX_STARTS * (3 if wanted.refusals else 1)):
        refused = _refused(life)
        fault = waiting.pop(0) if waiting else None
        met = _Faults(fault)
        life.disk.before = met
        life.disk.on_read = met.read if fault is not None and fault.code == errno.EIO else None
        run, action = resumed(wanted.scenario, mark)
        told.trace.append(f"start of run {run} at action {action}, with {fault or 'no fault'}")
        ended = life.start_and_stop(run) if stops else None
        if ended is None or ended.error is None:
            ended = life.live(run, action)
        life.disk.before = life.disk.on_read = None
        stops = False
        if met.met and fault is not None:
            told.faults[fault.kind] += 1
        told.trace += [f"  {op}" for op in life.disk.ops if op.kind == "mark"]
        mark = next((op.note for op in reversed(life.disk.ops) if op.kind == "mark"), mark)
        told.trace.append(f"  ended with {ended.error!r}")
        was_refused = _refused(life) > refused
        if ended.finished:
            break
        if isinstance(ended.error, Died):
            assert fault is not None
            stops = fault.stops
            tree = life.disk.tree
            if fault.loss is not None:
                power_failed = True
                tree = after_power_loss(life.disk.base, life.disk.ops, fault.loss, wanted.seed)
                life.disk.is_dead = False
                with life.disk.durably():
                    tree.put(life.root)
            life.go_on(tree, after_s=wanted.rest_s)
        elif met.met and fault is not None and fault.code is not None and _may_be(ended.error):
            # The supervisor restarts the job.
            life.go_on(after_s=wanted.rest_s)
        elif was_refused and isinstance(ended.error, PenstockError) and fault_of(ended.error) != "user":
            life.go_on(after_s=max(wanted.rest_s, _REFUSED_REST_S))
        else:
            break
    told.faults["broker refuses"] += sum(refusal.met > 0 for refusal in life.brokers.refusals)
    told.outcome = judge(life, ended, power_failed=power_failed)
    return told


def _refused(life: Life) -> int:
    """Return how often brokers have refused."""
    return sum(refusal.met for refusal in life.brokers.refusals)


def _may_be(error: BaseException | None) -> bool:
    """Return whether a run may end so when its disk fails."""
    return isinstance(error, PenstockError | OSError)


class _Faults:
    """The disk's answers to the operations of one process."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._count = 0
        self.met = False

    def __call__(self, op: Op) -> None:
        fault = self._fault
        self._count += 1
        if fault is None or self._count < fault.at:
            return
        if fault.code is None:
            self.met = True
            raise Died
        full_too = fault.code == errno.EIO or op.kind in ("make", "write")
        if self._count < fault.at + fault.count and full_too and op.kind not in ("mark", "broker"):
            self.met = True
            raise OSError(fault.code, os.strerror(fault.code), op.path)

    def read(self, path: str) -> None:
        fault = self._fault
        if fault is not None and fault.at <= self._count < fault.at + fault.count:
            self._count += 1
            self.met = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
