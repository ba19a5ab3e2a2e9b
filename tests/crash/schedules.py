"""Random schedules: a story, crashes and faults of the disk that follow from a seed, lived to the end."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import dataclass, field

from crash_jobs import JOBS, Row
from crash_model import POWER_LOSSES, Loss, after_power_loss
from crash_trials import Outcome, judge, resumed
from disk_tree import Op
from life import Action, Life, Run, Story
from recording_disk import Died
from run_kinds import ROOMS, adjustments, readings

from penstock.errors import PenstockError

__all__ = ["Schedule", "Told", "live_schedule", "schedule"]

_MOST_STARTS = 12


@dataclass(frozen=True)
class Fault:
    """What happens to one process: it dies behind so many operations, or its disk has a bad time from there on.

    `loss` is what a power loss leaves, None for a kill. `code` is the error of the disk, for `count` operations.
    """

    at: int
    loss: Loss | None = None
    code: int | None = None
    count: int = 0
    stops: bool = False

    @property
    def kind(self) -> str:
        """What it counts as."""
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
    """A story, and the fault of each process that lives it; those behind have none."""

    seed: int
    story: Story
    faults: tuple[Fault, ...]


@dataclass
class Told:
    """What came of a schedule: which faults there were, and in which order things happened."""

    outcome: Outcome
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def schedule(seed: int, *, power: bool = True) -> Schedule:
    """The schedule of a seed; without `power` it has no power losses."""
    chance = random.Random(seed)
    story = _story(chance)
    faults = tuple(_fault(chance, power=power) for _ in range(chance.choice((1, 1, 2, 2, 3))))
    return Schedule(seed, story, faults)


def _fault(chance: random.Random, *, power: bool) -> Fault:
    at = chance.randint(1, chance.choice((100, 300, 600)))
    kind = chance.random()
    if kind < 0.15:
        return Fault(at, code=errno.ENOSPC, count=chance.choice((1, 3, 20)))
    if kind < 0.3:
        return Fault(at, code=errno.EIO, count=chance.choice((1, 2)))
    loss = chance.choice(POWER_LOSSES) if power and kind < 0.6 else None
    return Fault(at, loss, stops=chance.random() < 0.25)


def _story(chance: random.Random) -> Story:
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
    return Story(
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
    """The actions over some runs, which are stopped in one way or the other."""
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
    """Live a schedule to its end, and judge what is there then."""
    life.seed = wanted.seed
    life.begin(wanted.story)
    told = Told(Outcome("went on"))
    mark = (0, 0)
    power_failed = False
    waiting = list(wanted.faults)
    stops = False
    for _ in range(_MOST_STARTS):
        fault = waiting.pop(0) if waiting else None
        met = _Faults(fault)
        life.disk.before = met
        life.disk.on_read = met.read if fault is not None and fault.code == errno.EIO else None
        run, action = resumed(wanted.story, mark)
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
            life.disk.begin(tree)
        elif met.met and fault is not None and fault.code is not None and _may_be(ended.error):
            # Whoever looks after the job starts it again.
            life.disk.begin()
        else:
            break
    told.outcome = judge(life, ended, power_failed=power_failed)
    return told


def _may_be(error: BaseException | None) -> bool:
    """Whether a run may end so when its disk has a bad time."""
    return isinstance(error, PenstockError | OSError)


class _Faults:
    """What the disk answers to the operations of one process."""

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
        if self._count < fault.at + fault.count and full_too and op.kind != "mark":
            self.met = True
            raise OSError(fault.code, os.strerror(fault.code), op.path)

    def read(self, path: str) -> None:
        fault = self._fault
        if fault is not None and fault.at <= self._count < fault.at + fault.count:
            self._count += 1
            self.met = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
