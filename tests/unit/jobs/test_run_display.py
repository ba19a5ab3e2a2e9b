"""The display of a run: how it shows counts and event time, live, as lines and at the end."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.jobs.commit import EventTime, Progress, RunSummary
from penstock.jobs.display import RunDisplay
from penstock.metrics.latency import Percentiles

NOON = dt.datetime(2026, 11, 21, 12, 0, 4, 999_000, dt.UTC)
TIMES = {
    "views": EventTime(NOON, 5.25, "visits/1"),
    "busiest": EventTime(None, None, "views"),
    "ahead": EventTime(NOON, -7_200.0, None),
}


def progress(**changed: Any) -> Progress:
    lag = {"visits": {"records": 0}}
    known = {"batch_ms": 12.0, **changed}
    return Progress(batch_id=7, records_in={"visits": 1_000}, records_out={"out": 3}, lag=lag, **known)


def shown(what: Any, *, terminal: bool = False) -> str:
    """Return what a display prints for a progress or a summary."""
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal, no_color=True)
    with RunDisplay(console, "shop") as display:
        if isinstance(what, Progress):
            display.update(what)
        else:
            display.print_summary(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_shows_event_time() -> None:
    """For each step with event time: the watermark, its lag, what holds it back, and late records."""
    line = shown(progress(event_time=TIMES, late={"views": 1_234}))
    assert len(line.splitlines()) == 1
    assert line.startswith("batch 7: visits=1,000 out=3 ")
    assert line.endswith(
        "lag: -; views: watermark 2026-11-21 12:00:04.999 UTC, behind the clock 5.2 s, held by visits/1, late=1,234"
        "; busiest: watermark none yet, behind the clock -, held by views, late=0"
        "; ahead: watermark 2026-11-21 12:00:04.999 UTC, ahead of the clock 2 h, late=0\n"
    )


def test_jobs_without_event_time_show_none() -> None:
    """This goes for lines and for the table."""
    assert shown(progress()).endswith("lag: -\n")
    assert "event time" not in shown(progress(), terminal=True)


def test_the_table_shows_event_time() -> None:
    """Each step has a row below the counts."""
    text = shown(progress(event_time=TIMES, late={"views": 1_234}), terminal=True)
    rows = {row[0]: row[1:] for line in text.splitlines() if len(row := line.replace("│", " ").split()) > 4}
    assert rows["views"] == ["2026-11-21", "12:00:04.999", "UTC", "5.2", "s", "visits/1", "1,234"]
    assert rows["busiest"] == ["none", "yet", "-", "views", "0"]


@pytest.mark.parametrize(
    ("behind_s", "told"),
    [(0.0, "0.0 s"), (119.94, "119.9 s"), (120.0, "2 min"), (7_199.0, "120 min"), (1e9, "11,574 d")],
)
def test_how_far_behind_has_a_fitting_unit(behind_s: float, told: str) -> None:
    """It ranges from seconds to days."""
    line = shown(progress(event_time={"views": EventTime(NOON, behind_s, None)}))
    assert f"behind the clock {told}, late=0" in line


def test_the_summary_shows_event_time() -> None:
    """The summary shows the final watermark, also one outside the range of dates."""
    times = {**TIMES, "far": EventTime("4611686018427387904 ms", None, None)}
    counts = {"in_windows": {"views": 1_040}, "late": {"views": 2}}
    summary = RunSummary("shop-1", "finished", 3, {}, {}, 0, 0, {}, "", **counts, event_time=times)
    text = shown(summary)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["in windows", "views", "1,040"] in rows
    assert ["late", "views", "2"] in rows
    assert ["watermark", "views", "2026-11-21 12:00:04.999 UTC"] in rows
    assert ["behind the clock", "views", "5.2 s"] in rows
    assert ["held by", "views", "visits/1"] in rows
    assert ["watermark", "far", "4611686018427387904 ms"] in rows
    assert ["held by", "ahead"] not in [row[:2] for row in rows]


def test_what_is_ahead_of_the_clock_says_so() -> None:
    """Records may have times in the future; the summary says so too."""
    times = {"views": EventTime(NOON, -2_640.0, None)}
    text = shown(RunSummary("shop-1", "finished", 3, {}, {}, 0, 0, {}, "", event_time=times))
    assert "44 min ahead" in text
    assert "-44" not in text


def test_one_file_is_one(tmp_path: Path) -> None:
    """The plural is right, and the place of dead letters is shown whole in a narrow terminal."""
    line = shown(Progress(batch_id=7, batch_ms=5.0, lag={"visits": {"files": 1}, "hits": {"files": 2}}))
    assert line.endswith("lag: visits 1 file, hits 2 files\n")
    where = str(tmp_path / ("x" * 200))
    console = Console(file=io.StringIO(), width=80, no_color=True)
    RunDisplay(console, "shop").print_summary(RunSummary("shop-1", "finished", 3, {}, {}, 1, 0, {}, where))
    assert isinstance(console.file, io.StringIO)
    assert f"Dead letters: {where}\n" in console.file.getvalue()


def test_a_micro_batch_whose_time_is_not_known_yet_has_no_line() -> None:
    """A micro-batch is counted before its commit; its line waits for its duration, and the table shows none
    until then.
    """
    console = Console(file=io.StringIO(), width=200)
    with RunDisplay(console, "shop") as display:
        display.update(progress(batch_ms=None))
        display.update(progress(batch_ms=8123.4))
    assert isinstance(console.file, io.StringIO)
    (line,) = console.file.getvalue().splitlines()
    assert "batch time 8,123 ms" in line
    assert " ms" not in shown(progress(batch_ms=None), terminal=True)


def test_in_real_time_there_are_intervals_and_latencies() -> None:
    """They replace the time of a micro-batch in lines, the table and the summary."""
    latency = {"out": Percentiles(10, 0.0042, 0.0251, 0.2619, 0.5)}
    known = progress(mode="real time", latency=latency)
    told = "out p50 4.2 ms, p95 25.1 ms, p99 262 ms"
    line = shown(known)
    assert line.startswith("interval 7: visits=1,000 out=3 ")
    assert f"latency: {told}, lag: -" in line
    table = shown(known, terminal=True)
    assert "interval" in table
    assert told in table
    summary = RunSummary("shop-1", "stopped", 3, {}, {}, 0, 0, {}, "", latency=latency, mode="real time")
    text = shown(summary)
    assert "3 intervals" in text
    assert "p50 4.2 ms, p95 25.1 ms, p99 262 ms" in text
