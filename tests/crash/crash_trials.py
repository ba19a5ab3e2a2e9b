"""Crashes a life after each of its operations, by a kill or a power loss, and checks its final result."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from broker_model import Brokers
from crash_model import Loss, after_kill, after_power_loss
from disk_tree import Op, Tree
from life import Ended, Life, Scenario
from oracle import refusal_fault, violations
from recording_broker import brokers_after

__all__ = [
    "Crash",
    "Outcome",
    "Recorded",
    "crash",
    "disk_after",
    "distinct",
    "judge",
    "record",
    "resumed",
    "some",
]

Result = Literal["went on", "refused", "violation"]

# Spark leaves files that were never renamed; nobody reads these.
_NEVER_READ = re.compile(r"/\.\.?[^/]+\.[0-9a-f-]{36}\.tmp(\.crc)?$")


@dataclass(frozen=True)
class Recorded:
    """A successful life: the disk and the brokers before, the operations, and the progress marks."""

    scenario: Scenario
    base: Tree
    ops: Sequence[Op]
    brokers: Brokers


@dataclass(frozen=True)
class Crash:
    """A crash after a number of operations; for a power loss also what survives besides synced writes.

    With `stops` the next run is stopped while it starts, and the one after it has more to read. With
    `outlived` workers live long enough to commit their open transactions at a broker.
    """

    at: int
    loss: Loss | None = None
    seed: int = 0
    stops: bool = False
    outlived: bool = False

    def __str__(self) -> str:
        what = "kill" if self.loss is None else f"power loss ({self.loss}, seed {self.seed})"
        more = ", then a stop during start" if self.stops else ""
        more += ", outlived by workers" if self.outlived else ""
        return f"{what} behind operation {self.at}{more}"


@dataclass
class Outcome:
    """The result of crashes."""

    result: Result
    why: list[str] = field(default_factory=list)


class NotRightError(AssertionError):
    """A life without any crash gave a wrong result."""


def record(life: Life, scenario: Scenario) -> Recorded:
    """Run a scenario without crashes, and record it."""
    life.begin(scenario)
    ended = life.live()
    if ended.error is not None:
        raise ended.error
    found = violations(life)
    if found:
        raise NotRightError("; ".join(found))
    return Recorded(scenario, life.disk.base, list(life.disk.ops), life.brokers.base)


def disk_after(recorded: Recorded, crash: Crash) -> Tree:
    """Return the disk after a crash."""
    ops = recorded.ops[: crash.at]
    if crash.loss is None:
        return after_kill(recorded.base, ops)
    return after_power_loss(recorded.base, ops, crash.loss, crash.seed)


def crash(life: Life, recorded: Recorded, crash: Crash, tree: Tree | None = None) -> Outcome:
    """Crash a recorded life, and continue it."""
    tree = disk_after(recorded, crash) if tree is None else tree
    with life.disk.durably():
        tree.put(life.root)
    life.scenario = recorded.scenario
    life.brokers.forget()
    life.go_on(tree, brokers_after(recorded.brokers, recorded.ops, crash.at, outlived=crash.outlived))
    marks = [op.note for op in recorded.ops[: crash.at] if op.kind == "mark"]
    run, action = resumed(recorded.scenario, marks[-1] if marks else (0, 0))
    if crash.stops and _left_for_savepoint(recorded.scenario, run, action):
        run, action = run + 1, 0
    ended = life.start_and_stop(run) if crash.stops else Ended(finished=True)
    if ended.error is None:
        ended = life.live(run, action)
    return judge(life, ended, power_failed=crash.loss is not None)


def resumed(scenario: Scenario, mark: tuple[int, int]) -> tuple[int, int]:
    """Return where a scenario continues: after its last run the job is started once more."""
    run, action = mark
    if run < len(scenario.runs):
        return run, action
    return len(scenario.runs) - 1, len(scenario.runs[-1].actions)


def _left_for_savepoint(scenario: Scenario, run: int, action: int) -> bool:
    """Return whether a run is complete and the next one starts from its savepoint, so that it must take no
    more input.
    """
    is_over = action >= len(scenario.runs[run].actions)
    return is_over and run + 1 < len(scenario.runs) and scenario.runs[run + 1].from_savepoint


def judge(life: Life, ended: Ended, *, power_failed: bool) -> Outcome:
    """Return what is wrong with a life that has finally ended."""
    if ended.error is not None:
        if not power_failed:
            return Outcome("violation", [f"it ended with {type(ended.error).__name__}: {ended.error}"])
        fault = refusal_fault(ended.error)
        return Outcome("refused", [str(ended.error)]) if fault is None else Outcome("violation", [fault])
    try:
        found = violations(life)
    except ValueError as e:
        found = [f"an output cannot be read: {e}"]
    return Outcome("violation", found) if found else Outcome("went on")


def some(
    recorded: Recorded, losses: Sequence[Loss | None], seed: int, *, stops: bool = False
) -> Iterator[Crash]:
    """Return all crashes after each operation, in random order."""
    places = [(at, loss) for at in range(len(recorded.ops) + 1) for loss in losses]
    random.Random(seed).shuffle(places)
    for at, loss in places:
        yield Crash(at, loss, at, stops)


def distinct(
    recorded: Recorded, losses: Sequence[Loss | None], step: int = 1, *, stops: bool = False
) -> Iterator[tuple[Crash, Tree]]:
    """Return those crashes that leave a disk, or brokers, in a state not seen before."""
    seen: set[tuple[object, int, bytes]] = set()
    for at in range(0, len(recorded.ops) + 1, step):
        marks = [op.note for op in recorded.ops[:at] if op.kind == "mark"]
        for loss in losses:
            one = Crash(at, loss, at, stops)
            tree = disk_after(recorded, one)
            changes = sum(op.kind == "broker" for op in recorded.ops[:at])
            key = (
                marks[-1] if marks else None,
                changes,
                tree.digest(lambda path: not _NEVER_READ.search(path)),
            )
            if key not in seen:
                seen.add(key)
                yield one, tree
