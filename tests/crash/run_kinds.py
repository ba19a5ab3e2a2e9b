"""Kinds of runs: jobs, sources and sinks, and what happens to them meanwhile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from crash_jobs import BEGIN, JOBS, Row
from life import Action, Run, Story

__all__ = ["KINDS", "MAIN", "adjustments", "readings"]

ROOMS = "abcde"
FEED, TURN, SEND, STOP = Action("feed"), Action("turn"), Action("send"), Action("stop")
LATE_STOP = Action("stop", late=True)


def readings(files: Sequence[int], *, bad: int | None = None) -> list[list[Row]]:
    """So many records in each file; the record `bad` cannot be processed."""
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
    """Commands that add to some rooms."""
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
    # The place is filled in when the story is told, since it depends on the folder.
    return {
        "id": f"dump{number}",
        "kind": "dump-state",
        "target": {},
        "payload": {"to": "{root}/dumps/{batch}", "format": "jsonl"},
    }


def _story(
    job: str,
    *runs: Run,
    files: Sequence[int] = (5, 5),
    commands: tuple[Row, ...] = (),
    feed: Mapping[str, Any] | None = None,
    **more: Any,
) -> Story:
    return Story(JOBS[job], runs, {"readings": readings(files), **(feed or {})}, commands, **more)


def _run(*actions: Action, **more: Any) -> Run:
    return Run(actions, **more)


_RESCALE_3, _RESCALE_1 = Action("rescale", parallelism=3), Action("rescale", parallelism=1)
_SAVEPOINT = Action("stop request", savepoint=True)
_FACTORS = {
    "factors": [[{"room": "a", "factor": 2}, {"room": "b", "factor": 3}], [{"room": "a", "factor": 5}]]
}
_FEED_FACTORS = Action("feed", stream="factors")
_JOURNAL = {"journaled": True}

MAIN = "a folder, a folder sink, commands"

KINDS: dict[str, Story] = {
    MAIN: _story(
        "counts", _run(FEED, TURN, SEND, FEED, TURN, FEED), files=(4, 4, 3), commands=adjustments(1)
    ),
    "one bounded run": _story("counts", _run(FEED, FEED, SEND, TURN, bounded=True), commands=adjustments(1)),
    "a first run without data": _story("counts", _run(TURN), _run(FEED, FEED)),
    "three runs": _story(
        "counts",
        _run(FEED, TURN, STOP),
        _run(SEND, FEED, TURN, STOP),
        _run(bounded=True),
        commands=adjustments(1),
    ),
    "a stop behind a plan": _story("counts", _run(FEED, TURN, FEED, LATE_STOP), _run()),
    "a stop behind the first plan": _story("counts", _run(FEED, LATE_STOP), _run(FEED)),
    "a stop during start": _story("counts", _run(FEED, TURN, FEED, LATE_STOP), _run(early_stop=True), _run()),
    "a stop during the first start": _story("counts", _run(early_stop=True), _run(FEED, FEED)),
    "two stops during start": _story(
        "counts", _run(FEED, TURN), _run(early_stop=True), _run(early_stop=True), _run(FEED)
    ),
    "commands in the checkpoint": _story(
        "counts", _run(FEED, SEND, TURN, SEND, FEED, TURN), commands=adjustments(2), own_commands=True
    ),
    "commands alone": _story("counts", _run(SEND, TURN, SEND, TURN, FEED, FEED), commands=adjustments(2)),
    "many commands at once": _story("counts", _run(FEED, *[SEND] * 5, TURN, FEED), commands=adjustments(5)),
    "a file for each micro-batch": _story(
        "counts", _run(FEED, FEED, FEED), files=(2, 2, 2), options={"readings": "?max_files_per_batch=1"}
    ),
    "few micro-batches are kept": _story("counts", _run(*[FEED, TURN] * 7), files=(2,) * 7, retained=2),
    "dead letters": Story(
        JOBS["counts"], (_run(FEED, TURN, FEED, TURN),), {"readings": readings((4, 4), bad=5)}
    ),
    "two sinks": _story("two-sinks", _run(FEED, TURN, FEED, TURN), files=(12, 9)),
    "two sinks, a stop during start": _story(
        "two-sinks", _run(FEED, TURN, FEED, LATE_STOP), _run(early_stop=True), _run(), files=(12, 9)
    ),
    "CSV": _story("counts", _run(FEED, TURN, FEED, TURN), form="csv"),
    "Parquet": _story("counts", _run(FEED, TURN, FEED, TURN), form="parquet"),
    "two levels": _story("two-levels", _run(FEED, TURN, SEND, FEED, TURN), commands=adjustments(1)),
    "no keyed step": _story("stateless", _run(FEED, TURN, FEED, TURN)),
    "a control stream": _story(
        "controlled", _run(_FEED_FACTORS, FEED, TURN, _FEED_FACTORS, FEED, TURN), feed=_FACTORS
    ),
    "windows": _story("windows", _run(FEED, TURN, FEED, TURN, STOP), _run(bounded=True)),
    "windows, drained": _story("windows", _run(FEED, TURN, FEED, Action("stop request", drain=True))),
    "timers": _story("timers", _run(FEED, TURN, FEED, TURN, STOP), _run(bounded=True)),
    "one task": _story("counts", _run(FEED, TURN, FEED, TURN), parallelism=1),
    "a task for each key group": _story("counts", _run(FEED, TURN, FEED, TURN), parallelism=4),
    "a journal": _story("counts", _run(FEED, TURN, FEED, TURN), **_JOURNAL),
    "a journal, three runs": _story(
        "counts", _run(FEED, TURN, STOP), _run(FEED, LATE_STOP), _run(FEED, TURN), files=(3, 3, 3), **_JOURNAL
    ),
    "a journal and a savepoint": _story(
        "counts",
        _run(FEED, TURN, _SAVEPOINT),
        _run(FEED, TURN, checkpoint="second", from_savepoint=True),
        **_JOURNAL,
    ),
    "rescaled up": _story("counts", _run(FEED, SEND, TURN, _RESCALE_3, FEED, TURN), commands=adjustments(1)),
    "rescaled down": _story("counts", _run(FEED, TURN, _RESCALE_1, FEED, TURN), parallelism=3),
    "rescaled twice": _story("counts", _run(FEED, TURN, _RESCALE_3, _RESCALE_1, FEED, TURN)),
    "rescaled before the first data": _story("counts", _run(_RESCALE_3, FEED, TURN, FEED)),
    "rescaled, two levels": _story("two-levels", _run(FEED, TURN, _RESCALE_3, FEED, TURN)),
    "rescaled, windows": _story("windows", _run(FEED, TURN, _RESCALE_3, FEED, STOP), _run(bounded=True)),
    "a savepoint": _story(
        "counts",
        _run(FEED, SEND, TURN, _SAVEPOINT),
        _run(FEED, TURN, checkpoint="second", from_savepoint=True),
        commands=adjustments(1),
    ),
    "a savepoint, another parallelism": _story(
        "two-levels", _run(FEED, TURN, _SAVEPOINT), _run(FEED, checkpoint="second", from_savepoint=True)
    ),
    "a dump": _story("counts", _run(FEED, TURN, SEND, TURN, FEED, TURN, TURN), commands=_others(_dump(1))),
    "paused": _story(
        "counts",
        _run(FEED, TURN, SEND, TURN, FEED, TURN, SEND, TURN),
        commands=_others(_pause("pause", 1), _pause("resume", 1)),
    ),
    "paused and rescaled": _story(
        "counts",
        _run(FEED, TURN, SEND, TURN, FEED, TURN, _RESCALE_3, SEND, TURN),
        commands=_others(_pause("pause", 1), _pause("resume", 1)),
    ),
}
