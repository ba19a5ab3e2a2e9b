"""Joins emit what Flink emits, in the cases that `make join-cases` ran with Flink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from join_support import SCHEMA
from property_examples import some_in_test

import penstock as ps
from penstock.testing import JobHarness

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "joins" / "flink_cases.json").read_text()
)
FIELDS = [f"{side}.{name} AS {side}_{name}" for side in ("left", "right") for name in ("k", "v", "at")]
BOUNDS = ["unix_millis(window_start) AS window_from", "unix_millis(window_end) AS window_to"]


@dataclass
class Session:
    """The records of both sides in a session, as JSON."""

    left: list[str]
    right: list[str]


def in_session(key: str, window: Any, left: list[Any], right: list[Any]) -> Iterator[Session]:
    """Return the records of both sides."""
    yield Session(*([json.dumps([one.k, one.v, one.at]) for one in side] for side in (left, right)))


def windows_of(name: str, *sizes: int) -> Any:
    """Return the windows that SQL names."""
    first, *others = [f"{size}ms" for size in sizes]
    if name == "tumble":
        return ps.TumblingWindows(first)
    # In SQL the slide or the step comes first.
    return ps.SlidingWindows(*others, first) if name == "hop" else ps.CumulativeWindows(first, *others)


def job_of(case: dict[str, Any]) -> ps.Job:
    """The job of a case."""
    job = ps.Job("case")
    left, right = (
        job.data_stream(
            name, schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.bounded("200ms")
        ).key_by("k")
        for name in ("left", "right")
    )
    condition = case.get("condition")
    options: dict[str, Any] = {
        "how": case.get("how"),
        "fields": FIELDS,
        "where": condition and f"left.v {condition} right.v",
    }
    if case["kind"] == "interval":
        lower, upper = f"{case['lower']}ms", f"{case['upper']}ms"
        result = left.interval_join("join", right, lower=lower, upper=upper, **options)
    elif case["kind"] == "as_of":
        result = left.as_of_join("join", right, **options)
    elif case["kind"] == "window":
        options["fields"] = [*FIELDS, *BOUNDS]
        result = left.window_join("join", right, windows_of(*case["windows"]), **options)
    else:
        result = left.co_group("join", right, ps.SessionWindows(f"{case['gap']}ms"), in_session)
    result.sink_to("out")
    return job


def values(record: Any) -> Any:
    """Return Flink's output for a record."""
    if isinstance(record, Session):
        return [sorted(map(json.loads, side), key=repr) for side in (record.left, record.right)]
    return [getattr(record, name) for name in record.__struct_fields__]


@pytest.mark.parametrize("number", some_in_test(range(len(CASES))))
def test_a_join_emits_what_flink_emitted(number: int) -> None:
    """Every case gives Flink's output, with its records in two micro-batches and a crash in between."""
    case = CASES[number]
    run = JobHarness(job_of(case))
    for part in range(2):
        for side in ("left", "right"):
            # Of versions with one time the later arrival counts, so these keep their order.
            middle = len(case[side]) // 2
            rows = case[side][:middle] if part == 0 else case[side][middle:]
            run.send(side, *(dict(zip(("k", "v", "at"), row, strict=True)) for row in rows))
        run.run_batch()
    run.crash()
    run.finish()
    found = Counter(json.dumps(values(one)) for one in run.output("out"))
    assert found == Counter(map(json.dumps, case["expected"]))


def test_there_are_cases_of_all_kinds() -> None:
    """There are enough cases of each kind, and most have results."""
    assert len(CASES) >= 60
    assert {case["kind"] for case in CASES} == {"interval", "as_of", "window", "session"}
    assert sum(bool(case["expected"]) for case in CASES) > 50
