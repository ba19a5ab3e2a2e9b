"""The exposition: metrics for Prometheus; documentation, dashboard and alert rules use the same ones."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from small_metrics import metrics_of_batch

from penstock.base.version import __version__
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import (
    BOUNDS_S,
    BatchMetrics,
    Lag,
    ModelMetrics,
    StepBatchMetrics,
    Totals,
)
from penstock.metrics.exposition import HISTOGRAM, LATENCY_HISTOGRAM, METRICS, ExposedJob, exposition
from penstock.metrics.latency import LATENCY_BOUNDS_S, Latency

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "metrics.md"
ENDED = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
NAME = re.compile(r"\bpenstock_[a-z0-9_]+\b")


def metrics(**more: Any) -> BatchMetrics:
    """Return metrics in which every metric has a value."""
    found: dict[str, Any] = {
        "parallelism": 4,
        "lag": {"visits": Lag(records=1, files=2, bytes=3, seconds=4.5), "other": Lag(records=7)},
        "steps": {"count": StepBatchMetrics(9, 1.5, 8, 1.25, 1000, 20, 1, 2, ENDED)},
        "memory": MemoryUse(1, 2, 3, 4, 5, 6.5),
        "models": {"count/fraud/2": ModelMetrics(70, 8, 7, 0.9, 0.3, 0.2, 10.0, 500.0)},
        "totals": Totals(
            batches=42,
            batches_within=tuple(range(len(BOUNDS_S))),
            busy_seconds=12.5,
            phases={"offsets": 1.0, "processing": 11.0},
            state_commit_seconds=0.5,
            records_in={"visits": 100},
            records_out={"out": 90},
            step_records={"count": 99},
            dead_letters=3,
            late={"count": 4},
            without_window={"count": 5},
            commands={"applied": 6, "degraded": 0, "rejected": 1},
            latency={"out": Latency((0, 80, 0, 8), 0.25, 0.0025)},
            model_records={"count/fraud/2": 70},
            model_failures={"count/fraud/2": 8},
            model_slow={"count/fraud/2": 7},
            model_late={"count/fraud/2": 6},
            model_seconds={"count/fraud/2": 0.75},
        ),
    }
    return metrics_of_batch(41, ENDED - dt.timedelta(seconds=2), 2.0, **(found | more))


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all values, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[name, frozenset({"job_name": "rooms", **labels}.items())]


def test_every_metric_has_a_value() -> None:
    """It equals the stored metrics, in base units."""
    found = samples(exposition([ExposedJob(metrics(), batch_running_s=0.25)]))
    assert {name for name, _ in found} == known_names()
    assert value(found, "penstock_running") == 1
    assert value(found, "penstock_batch_running_seconds") == 0.25
    assert value(found, "penstock_records_in_total", stream="visits") == 100
    assert value(found, "penstock_commands_total", outcome="applied") == 6
    assert value(found, "penstock_model_failures_total", step="count", model="fraud", version="2") == 8
    version = {"step": "count", "model": "fraud", "version": "2"}
    assert value(found, "penstock_model_drift", **version) == 0.3
    assert value(found, "penstock_model_call_p99_seconds", **version) == 0.5
    assert value(found, "penstock_lag_seconds", stream="visits") == 4.5
    assert value(found, "penstock_lag_records", stream="other") == 7
    assert value(found, "penstock_step_state_bytes", step="count") == 1000
    assert value(found, "penstock_step_watermark_timestamp_seconds", step="count") == ENDED.timestamp()
    assert value(found, "penstock_memory_bytes", process="workers") == 3
    assert value(found, "penstock_last_batch_timestamp_seconds") == ENDED.timestamp()
    assert value(found, f"{HISTOGRAM}_sum") == 12.5
    assert value(found, f"{HISTOGRAM}_count") == 42
    assert value(found, f"{HISTOGRAM}_bucket", le="0.5") == 3
    assert value(found, f"{HISTOGRAM}_bucket", le="+Inf") == 42
    assert value(found, "penstock_job_info", job_id="rooms-1", version=__version__, mode="micro-batches") == 1


def test_the_latency_of_a_sink_is_a_histogram() -> None:
    """Cumulative buckets include their bound, and +Inf counts everything. A sink without output has 0."""
    counts = (0, 80, *[0] * (len(LATENCY_BOUNDS_S) - 2), 7)
    totals = Totals(records_out={"out": 90, "idle": 0}, latency={"out": Latency(counts, 640.5, 90.0)})
    found = samples(exposition([ExposedJob(metrics(totals=totals, checkpoint_interval_ms=5000))]))
    within = {
        bound_s: value(found, f"{LATENCY_HISTOGRAM}_bucket", sink="out", le=str(bound_s))
        for bound_s in LATENCY_BOUNDS_S
    }
    assert within == {bound_s: 80 if bound_s > 0.001 else 0 for bound_s in LATENCY_BOUNDS_S}
    assert value(found, f"{LATENCY_HISTOGRAM}_bucket", sink="out", le="+Inf") == 87
    assert value(found, f"{LATENCY_HISTOGRAM}_count", sink="out") == 87
    assert value(found, f"{LATENCY_HISTOGRAM}_sum", sink="out") == 640.5
    assert value(found, f"{LATENCY_HISTOGRAM}_count", sink="idle") == 0
    assert value(found, "penstock_checkpoint_interval_seconds") == 5
    assert value(found, "penstock_job_info", job_id="rooms-1", version=__version__, mode="real time") == 1


def test_what_is_not_known_is_left_out() -> None:
    """Unknown values are not exposed as 0; a job without any work has only counters, which are 0."""
    blank = metrics(
        batch=-1, lag={"visits": Lag(records=0)}, steps={"count": StepBatchMetrics()}, memory=None
    )
    found = samples(exposition([ExposedJob(blank, is_running=False)]))
    names = {name for name, _ in found}
    assert names.isdisjoint(
        {
            "penstock_last_batch",
            "penstock_last_batch_timestamp_seconds",
            "penstock_batch_running_seconds",
            "penstock_lag_seconds",
            "penstock_lag_files",
            "penstock_step_skew_ratio",
            "penstock_step_watermark_timestamp_seconds",
            "penstock_memory_bytes",
            "penstock_jvm_gc_seconds_total",
        }
    )
    assert value(found, "penstock_running") == 0
    assert value(found, "penstock_lag_records", stream="visits") == 0
    assert value(found, "penstock_step_keys", step="count") == 0


def test_several_jobs_at_once() -> None:
    """Each metric's header appears once, with the values of all jobs."""
    text = exposition([ExposedJob(metrics()), ExposedJob(metrics(job="trips"))])
    assert text.count(b"# TYPE penstock_running gauge") == 1
    assert {labels for name, labels in samples(text) if name == "penstock_running"} == {
        frozenset({("job_name", "rooms")}),
        frozenset({("job_name", "trips")}),
    }
    assert exposition([]) == exposition([]) != b""


def test_names_are_odd() -> None:
    """The text is parseable for any stream names."""
    odd = 'a "quoted\\" name\nwith a line'
    found = samples(exposition([ExposedJob(metrics(lag={odd: Lag(records=1)}))]))
    assert value(found, "penstock_lag_records", stream=odd) == 1


def test_names_follow_the_rules() -> None:
    """Counters end in _total, and the unit comes last; no label has record keys."""
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not re.search(r"_(ms|milliseconds|kb|mb|percent)\b", metric.name)
        assert set(metric.labels) <= {
            "stream",
            "sink",
            "step",
            "phase",
            "outcome",
            "process",
            "job_id",
            "model",
            "version",
            "mode",
        }


def test_the_page_lists_what_is_exposed() -> None:
    """The page has each metric with its type, labels and meaning, and no other."""
    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `penstock_")
    ]
    listed = {row[0].strip("`"): (row[1], row[2].replace("`", "").strip(), row[3]) for row in rows}
    text = exposition([ExposedJob(metrics())]).decode()
    helps = dict(re.findall(r"^# HELP (\S+) (.*?)\.?$", text, re.MULTILINE))
    exposed = {m.name: (m.kind, ", ".join(m.labels), helps[m.name]) for m in METRICS}
    exposed[HISTOGRAM] = ("histogram", "", helps[HISTOGRAM])
    exposed[LATENCY_HISTOGRAM] = ("histogram", "sink", helps[LATENCY_HISTOGRAM])
    assert listed == exposed


def known_names() -> set[str]:
    """The names of all series."""
    histograms = {
        f"{name}_{end}" for name in (HISTOGRAM, LATENCY_HISTOGRAM) for end in ("bucket", "sum", "count")
    }
    return {metric.name for metric in METRICS} | histograms


def expressions(dashboard: Any) -> list[str]:
    """Return all queries of a dashboard, including those of its variables."""
    if isinstance(dashboard, dict):
        own = [dashboard[key] for key in ("expr", "definition") if isinstance(dashboard.get(key), str)]
        return own + [found for value in dashboard.values() for found in expressions(value)]
    if isinstance(dashboard, list):
        return [found for value in dashboard for found in expressions(value)]
    return []


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Panels use only existing metrics, and all of them except a few that are not useful there."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text())
    found = expressions(dashboard)
    assert len(found) > 20
    for expression in found:
        assert NAME.findall(expression), expression
    named = {name for expression in found for name in NAME.findall(expression)}
    # A histogram has more detail than the first; the others are only counts.
    plain = {
        "penstock_last_batch_duration_seconds",
        "penstock_last_batch",
        "penstock_cores",
        "penstock_checkpoint_interval_seconds",
    }
    assert known_names() - named == plain
    assert named <= known_names()


def test_panels_of_the_dashboard_are_whole() -> None:
    """Each has a title, a position, a unit, and the data source that the reader selects."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    for panel in panels:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert 'job_name=~"$job_name"' in target["expr"]


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    text = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_alert_rules_ask_for_metrics_that_there_are(rules: list[dict[str, Any]]) -> None:
    """They have a summary, a severity, and a remedy."""
    assert len(rules) >= 8
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        names = set(NAME.findall(rule["expr"]))
        assert names
        assert names <= known_names()
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.job_name }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_the_page_tells_of_every_alert(rules: list[dict[str, Any]]) -> None:
    """It has each with its severity, and no other."""
    listed = dict(re.findall(r"^\| `(Penstock\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    assert listed == {rule["alert"]: rule["labels"]["severity"] for rule in rules}
