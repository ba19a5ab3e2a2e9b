"""Kinds of runs: jobs, sources, sinks and actions. `topic_kinds` has those with topics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from crash_jobs import BEGIN, JOBS, Row
from life import Action, Run, Scenario

__all__ = [
    "FEED",
    "KINDS",
    "LATE_STOP",
    "MAIN",
    "RESCALE_1",
    "RESCALE_3",
    "SAVEPOINT",
    "SEND",
    "STOP",
    "TURN",
    "adjustments",
    "make_run",
    "make_story",
    "readings",
]

ROOMS = "abcde"
FEED, TURN, SEND, STOP = Action("feed"), Action("turn"), Action("send"), Action("stop")
LATE_STOP = Action("stop", late=True)


def readings(files: Sequence[int], *, bad: int | None = None) -> list[list[Row]]:
    """Return this many records for each file; the record `bad` cannot be processed."""
    found: list[list[Row]] = []
    number = 0
    for count in files:
        rows = []
        for _ in range(count):
            at = (BEGIN + dt.timedelta(seconds=20 * number)).isoformat()
            value = -1 if number == bad else number
            rows.append({"room": ROOMS[number * number % 7 % 5], "value": value, "at": at})
            number += 1
        found.append(rows)
    return found


def adjustments(count: int) -> tuple[Row, ...]:
    """Return commands that add to some rooms."""
    return tuple(
        {
            "id": f"c{n}",
            "kind": "adjust",
            "target": {"step": "count", "keys": [ROOMS[n % 5], ROOMS[(n + 2) % 5]]},
            "payload": n + 1,
        }
        for n in range(count)
    )


def _others(*commands: Row) -> tuple[Row, ...]:
    return commands


def _pause(kind: str, number: int) -> Row:
    return {"id": f"{kind}{number}", "kind": kind, "target": {"step": "count"}}


def _dump(number: int) -> Row:
    # The place depends on the folder, so it is filled in when the scenario runs.
    return {
        "id": f"dump{number}",
        "kind": "dump-state",
        "target": {},
        "payload": {"to": "{root}/dumps/{batch}", "format": "jsonl"},
    }


def make_story(
    job: str,
    *runs: Run,
    files: Sequence[int] = (5, 5),
    commands: tuple[Row, ...] = (),
    feed: Mapping[str, Any] | None = None,
    bad: int | None = None,
    **more: Any,
) -> Scenario:
    """Return a scenario of a job whose input files have this many records."""
    return Scenario(JOBS[job], runs, {"readings": readings(files, bad=bad), **(feed or {})}, commands, **more)


def make_run(*actions: Action, **more: Any) -> Run:
    """Return a run with these actions."""
    return Run(actions, **more)


RESCALE_3, RESCALE_1 = Action("rescale", parallelism=3), Action("rescale", parallelism=1)
SAVEPOINT = Action("stop request", savepoint=True)
_FACTORS = {
    "factors": [[{"room": "a", "factor": 2}, {"room": "b", "factor": 3}], [{"room": "a", "factor": 5}]]
}
_FEED_FACTORS = Action("feed", stream="factors")
_JOURNAL = {"journaled": True}

MAIN = "a folder, a folder sink, commands"

KINDS: dict[str, Scenario] = {
    MAIN: make_story(
        "counts", make_run(FEED, TURN, SEND, FEED, TURN, FEED), files=(4, 4, 3), commands=adjustments(1)
    ),
    "one bounded run": make_story(
        "counts", make_run(FEED, FEED, SEND, TURN, bounded=True), commands=adjustments(1)
    ),
    "a first run without data": make_story("counts", make_run(TURN), make_run(FEED, FEED)),
    "three runs": make_story(
        "counts",
        make_run(FEED, TURN, STOP),
        make_run(SEND, FEED, TURN, STOP),
        make_run(bounded=True),
        commands=adjustments(1),
    ),
    "a stop behind a plan": make_story("counts", make_run(FEED, TURN, FEED, LATE_STOP), make_run()),
    "a stop behind the first plan": make_story("counts", make_run(FEED, LATE_STOP), make_run(FEED)),
    "a stop during start": make_story(
        "counts", make_run(FEED, TURN, FEED, LATE_STOP), make_run(early_stop=True), make_run()
    ),
    "a stop during the first start": make_story("counts", make_run(early_stop=True), make_run(FEED, FEED)),
    "two stops during start": make_story(
        "counts", make_run(FEED, TURN), make_run(early_stop=True), make_run(early_stop=True), make_run(FEED)
    ),
    "commands in the checkpoint": make_story(
        "counts", make_run(FEED, SEND, TURN, SEND, FEED, TURN), commands=adjustments(2), own_commands=True
    ),
    "commands alone": make_story(
        "counts", make_run(SEND, TURN, SEND, TURN, FEED, FEED), commands=adjustments(2)
    ),
    "many commands at once": make_story(
        "counts", make_run(FEED, *[SEND] * 5, TURN, FEED), commands=adjustments(5)
    ),
    "a file for each micro-batch": make_story(
        "counts", make_run(FEED, FEED, FEED), files=(2, 2, 2), options={"readings": "?max_files_per_batch=1"}
    ),
    "few micro-batches are kept": make_story(
        "counts", make_run(*[FEED, TURN] * 7), files=(2,) * 7, retained=2
    ),
    "dead letters": Scenario(
        JOBS["counts"], (make_run(FEED, TURN, FEED, TURN),), {"readings": readings((4, 4), bad=5)}
    ),
    "two sinks": make_story("two-sinks", make_run(FEED, TURN, FEED, TURN), files=(12, 9)),
    "two sinks, a stop during start": make_story(
        "two-sinks",
        make_run(FEED, TURN, FEED, LATE_STOP),
        make_run(early_stop=True),
        make_run(),
        files=(12, 9),
    ),
    "CSV": make_story("counts", make_run(FEED, TURN, FEED, TURN), form="csv"),
    "Parquet": make_story("counts", make_run(FEED, TURN, FEED, TURN), form="parquet"),
    "two levels": make_story("two-levels", make_run(FEED, TURN, SEND, FEED, TURN), commands=adjustments(1)),
    "no keyed step": make_story("stateless", make_run(FEED, TURN, FEED, TURN)),
    "a control stream": make_story(
        "controlled", make_run(_FEED_FACTORS, FEED, TURN, _FEED_FACTORS, FEED, TURN), feed=_FACTORS
    ),
    "windows": make_story("windows", make_run(FEED, TURN, FEED, TURN, STOP), make_run(bounded=True)),
    "windows, drained": make_story("windows", make_run(FEED, TURN, FEED, Action("stop request", drain=True))),
    "timers": make_story("timers", make_run(FEED, TURN, FEED, TURN, STOP), make_run(bounded=True)),
    "one task": make_story("counts", make_run(FEED, TURN, FEED, TURN), parallelism=1),
    "a task for each key group": make_story("counts", make_run(FEED, TURN, FEED, TURN), parallelism=4),
    "a journal": make_story("counts", make_run(FEED, TURN, FEED, TURN), **_JOURNAL),
    "a journal, three runs": make_story(
        "counts",
        make_run(FEED, TURN, STOP),
        make_run(FEED, LATE_STOP),
        make_run(FEED, TURN),
        files=(3, 3, 3),
        **_JOURNAL,
    ),
    "a journal and a savepoint": make_story(
        "counts",
        make_run(FEED, TURN, SAVEPOINT),
        make_run(FEED, TURN, checkpoint="second", from_savepoint=True),
        **_JOURNAL,
    ),
    "rescaled up": make_story(
        "counts", make_run(FEED, SEND, TURN, RESCALE_3, FEED, TURN), commands=adjustments(1)
    ),
    "rescaled down": make_story("counts", make_run(FEED, TURN, RESCALE_1, FEED, TURN), parallelism=3),
    "rescaled twice": make_story("counts", make_run(FEED, TURN, RESCALE_3, RESCALE_1, FEED, TURN)),
    "rescaled before the first data": make_story("counts", make_run(RESCALE_3, FEED, TURN, FEED)),
    "rescaled, two levels": make_story("two-levels", make_run(FEED, TURN, RESCALE_3, FEED, TURN)),
    "rescaled, windows": make_story(
        "windows", make_run(FEED, TURN, RESCALE_3, FEED, STOP), make_run(bounded=True)
    ),
    "a savepoint": make_story(
        "counts",
        make_run(FEED, SEND, TURN, SAVEPOINT),
        make_run(FEED, TURN, checkpoint="second", from_savepoint=True),
        commands=adjustments(1),
    ),
    "a savepoint, another parallelism": make_story(
        "two-levels",
        make_run(FEED, TURN, SAVEPOINT),
        make_run(FEED, checkpoint="second", from_savepoint=True),
    ),
    "a dump": make_story(
        "counts", make_run(FEED, TURN, SEND, TURN, FEED, TURN, TURN), commands=_others(_dump(1))
    ),
    "paused": make_story(
        "counts",
        make_run(FEED, TURN, SEND, TURN, FEED, TURN, SEND, TURN),
        commands=_others(_pause("pause", 1), _pause("resume", 1)),
    ),
    "paused and rescaled": make_story(
        "counts",
        make_run(FEED, TURN, SEND, TURN, FEED, TURN, RESCALE_3, SEND, TURN),
        commands=_others(_pause("pause", 1), _pause("resume", 1)),
    ),
}
