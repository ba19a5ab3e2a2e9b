"""What the charts of the dashboard show."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.batch_metrics import BatchMetrics, Lag, StepBatchMetrics, Totals
from penstock.metrics.latency import Latency
from penstock.server.dashboard.live_charts import FORMATS
from penstock.server.dashboard.series import POINTS, Chart, Unit, charts

BEGUN = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return BEGUN + dt.timedelta(seconds=seconds)


def metrics(
    ended_s: float, duration_s: float = 0.5, records: int = 100, run: str = "a", **more: Any
) -> BatchMetrics:
    known = {
        "records_in": {"visits": records},
        "totals": Totals(),
        "parallelism": 1,
        "batch": int(ended_s * 10),
    }
    return BatchMetrics(
        job="rooms", job_id=run, started=at(ended_s - duration_s), ended=at(ended_s), duration_s=duration_s,
        **{**known, **more},
    )  # fmt: skip


def lines(found: list[Chart], name: str) -> dict[str, list[float]]:
    chart = next(chart for chart in found if chart.name == name)
    return {line.name: [value for _, value in line.points] for line in chart.lines}


def unit_of_lag(found: list[Chart]) -> str:
    return next(chart.unit for chart in found if chart.name == "lag")


def test_a_steady_job_has_a_flat_line() -> None:
    """100 records in each second are 100/s, however the window is cut; half of the time is 50 % busy."""
    found = [metrics(float(s)) for s in range(300)]
    for window_s in (30.0, 77.0, 120.0):
        made = charts(found, at(299.2), window_s)
        values = lines(made, "throughput")["visits in"]
        assert len(values) >= POINTS - 5
        assert max(abs(value - 100) for value in values) < 0.01
        assert set(lines(made, "busy")["busy"]) == {50.0}
        assert set(lines(made, "batch")["longest"]) == {0.5}


@given(
    st.lists(
        st.tuples(st.floats(0.05, 20), st.integers(0, 1000), st.floats(0.01, 1)), min_size=1, max_size=30
    ),
    st.sampled_from([60.0, 600.0, 3600.0]),
)
def test_no_record_is_lost_or_shown_twice(batches: list[tuple[float, int, float]], window_s: float) -> None:
    """What the line of throughput covers is all that was read within the window."""
    found, now_s = [], 0.0
    for gap_s, records, share in batches:
        now_s += gap_s
        found.append(metrics(now_s, duration_s=gap_s * share, records=records))
    # One that reads nothing ends the last stretch of time.
    after_s = now_s + 2 * window_s / POINTS
    found.append(metrics(after_s, duration_s=after_s - now_s, records=0))
    made = charts(found, at(after_s + window_s / POINTS), window_s)
    covered = sum(lines(made, "throughput").get("visits in", [0.0])) * window_s / POINTS
    if after_s < window_s * 0.9:
        assert abs(covered - sum(records for _, records, _ in batches)) < 1
    else:
        assert covered <= sum(records for _, records, _ in batches) + 1


def test_points_stay_where_they_are() -> None:
    """As time advances, old points move out, and none of the others changes."""
    found = [metrics(float(s), records=s) for s in range(200)]
    before, after = (
        dict(next(c for c in charts(found, at(now_s), 60.0) if c.name == "throughput").lines[0].points)
        for now_s in (150.0, 160.0)
    )
    both = before.keys() & after.keys()
    assert len(both) > POINTS / 2
    assert all(before[time] == after[time] for time in both)


def test_a_pause_between_runs_has_no_throughput() -> None:
    """The first micro-batch of a run is not spread over the time in which nothing ran."""
    found = [metrics(10.0), metrics(100.0, run="b")]
    made = charts(found, at(103.0), 120.0)
    points = next(c for c in made if c.name == "throughput").lines[0].points
    assert all(not 11 < time / 1000 - BEGUN.timestamp() < 99 for time, _ in points)


def test_lag_event_time_and_state_are_the_last_values() -> None:
    """In the unit that sources tell; a step without a watermark has no line."""
    steps = {
        "a": StepBatchMetrics(state_bytes=10, watermark=at(9.0)),
        "b": StepBatchMetrics(state_bytes=20),
    }
    more = {"steps": steps, "lag": {"visits": Lag(records=7, seconds=3.0), "files": Lag(files=2)}}
    made = charts([metrics(10.0, **more)], at(13.0), 60.0)
    assert unit_of_lag(made) == "records"
    assert lines(made, "lag") == {"visits": [7]}
    assert lines(made, "watermark") == {"a": [1.0]}
    assert lines(made, "state") == {"a": [10], "b": [20]}
    assert (
        next(
            c for c in charts([metrics(1.0, lag={"s": Lag(seconds=2.0)})], at(3.0), 60.0) if c.name == "lag"
        ).unit
        == "s"
    )


def test_latency_is_shown_by_sink() -> None:
    """Its middle and its tail; the duration of an interval says nothing, so the chart beside it says its work."""
    more = {"latency": {"out": Latency((0, 10), 0.012, 0.0014)}, "checkpoint_interval_ms": 5000}
    made = charts([metrics(10.0, **more)], at(13.0), 60.0)
    assert lines(made, "latency") == {"out p50": [0.0013], "out p99": [0.0014]}
    assert [chart.title for chart in made if chart.name == "batch"] == ["Work in an interval"]


def test_without_metrics_there_are_charts_without_lines() -> None:
    """So that the page has its place for each."""
    made = charts([], at(0), 60.0)
    assert len(made) == 7
    assert all(chart.lines == [] for chart in made)


def test_every_axis_says_its_unit() -> None:
    """A number alone would not tell whether records or files wait."""
    shown = {"records/s": "'/s'", "records": "' records'", "files": "' files'", "%": "' %'"}
    assert set(FORMATS) == set(get_args(Unit))
    # An index of drift has no unit.
    for unit, written in ((unit, written) for unit, written in FORMATS.items() if unit != "number"):
        # Times and sizes have theirs in the function of the browser.
        assert shown.get(unit, {"s": "seconds", "bytes": "size"}.get(unit, "-")) in written
