"""SQL statements in real time: the results of the rounds equal DuckDB's for the whole input."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pytest
from live_runner import LiveRunner
from sql_cases import CASES, Case, data, described, expected, last, rows_of


def as_json(value: Any) -> Any:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, decimal.Decimal) else value


def check(case: Case, folder: Path, parts: int) -> None:
    job = described(case)
    (sink,) = job.graph.sinks()
    with LiveRunner(job, folder, 2) as live:

        def during() -> None:
            for part in range(parts):
                for source in job.graph.sources():
                    records = data()[source.name]
                    low, high = (len(records) * one // parts for one in (part, part + 1))
                    sent = [
                        {name: as_json(value) for name, value in one.items()} for one in records[low:high]
                    ]
                    live.send(source.name, *sent)
            for source in job.graph.sources():
                live.send(source.name, {name: as_json(value) for name, value in last()[source.name].items()})

        outcome = live.run(during)
    assert not outcome.dead_letters
    found = rows_of(outcome.outputs[sink.name], sink.upsert_key)
    without, with_last = expected(case), expected(case, with_last=True)
    # The last record advances the watermark; its own results may still wait for a later one.
    assert found
    assert not (without & with_last) - found
    assert not found - with_last


# One step of each kind; `make chaos` covers all.
SOME = (
    "a parameter", "a union of two streams", "windows", "sessions", "windows of windows", "groups of groups",
    "first rows with their rank", "newest rows", "rows before", "a left interval join", "the version of a time",
)  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.name in SOME], ids=lambda case: case.name)
def test_a_statement_means_the_same_in_real_time(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path, 2)


@pytest.mark.chaos
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_statements_mean_the_same_in_real_time(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path, 4)
