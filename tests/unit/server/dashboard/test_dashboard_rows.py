"""Table rows of the dashboard's pages on state, savepoints and errors."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from small_metrics import metrics_of_batch

from penstock.commands.listed_models import ListedModel, ListedVersion
from penstock.jobs.dead_letters import FoundLetter
from penstock.metrics.batch_metrics import ModelMetrics
from penstock.models.model_policy import VersionFigures
from penstock.operators.record_blocks import DeadLetter
from penstock.savepoints.state_pages import StoredKey
from penstock.server.dashboard.failures_page import letter_rows, reason_rows
from penstock.server.dashboard.models_page import examination_text, policy_text, version_rows
from penstock.server.dashboard.savepoints_page import savepoint_row
from penstock.server.dashboard.series import model_charts
from penstock.server.dashboard.state_page import key_rows, list_state_names
from penstock.server.service.job_resources import Savepoint
from penstock.server.service.view_resources import dead_letters_of


def stored(key: object, values: dict[str, object] | None, timers: object = None) -> StoredKey:
    return StoredKey(key=key, key_group=3, bytes=2048, values=values, timers=timers, windows=None)


def test_keys_show_what_they_hold() -> None:
    """Each state has a column, whatever its name, followed by timers and windows; long values are cut."""
    found = (
        stored("a", {"limit": None, ":x": [1, "ü"]}, timers=[{"at": 5}]),
        stored([1, "b"], {"limit": 7, ":x": "y" * 500}),
        stored("c", None),
    )
    names = list_state_names(found)
    assert names == ["limit", ":x", "timers"]
    first, second, third = key_rows(found, names)
    assert first == {
        "key": "a",
        "group": 3,
        "size": "2.0 KiB",
        "s0": "",
        "s1": '[1, "ü"]',
        "s2": '[{"at": 5}]',
    }
    assert (second["key"], second["s0"], second["s1"], second["s2"]) == (
        '[1, "b"]',
        "7",
        "y" * 160 + " ...",
        "",
    )
    assert third["s0"] == "too large"
    assert list_state_names(()) == []


def letter(reason: str, offset: int, raw: bytes = b"{}", step: str = "") -> FoundLetter:
    return FoundLetter(DeadLetter(reason, "hits", step, "00000", offset, raw), 0, 7)


def test_dead_letters_are_shown_newest_first() -> None:
    """Each has a sample, as text where possible; reasons are sorted by frequency."""
    found = dead_letters_of(
        [letter("late", 1), letter("late", 2, b"\xff"), letter("boom", 3, b"x" * 300, "count")]
    )
    rows = letter_rows(found)
    assert [row["place"] for row in rows] == ["hits 00000 3", "hits 00000 2", "hits 00000 1"]
    assert [row["sample"] for row in rows] == ["x" * 200, "/w==", "{}"]
    assert (rows[0]["size"], rows[0]["step"], rows[1]["step"]) == ("300 B", "count", "-")
    assert [(row["reason"], row["count"]) for row in reason_rows(found)] == [("late", "2"), ("boom", "1")]


def test_a_savepoint_is_a_row() -> None:
    """The time is in readable form."""
    found = Savepoint(id="sp-1", job_name="rooms", batch=4, created_at="2026-12-01T12:00:00+00:00", uri="/x")
    assert savepoint_row(found) == {"id": "sp-1", "job": "rooms", "batch": 4, "taken": "2026-12-01 12:00:00"}


def test_versions_show_what_they_scored_lately() -> None:
    """Scoring versions show the policy's window; others show totals since the checkpoint's start."""
    about = {
        "format": "onnx",
        "sha256": "",
        "content_bytes": 1000,
        "is_examined": True,
        "failure": None,
        "uri": "/m",
        "metadata": {},
        "changed_by": "policy",
        "command": "",
    }
    zero = {"records": 2000, "failures": 1, "slow": 0, "late": 0, "chosen": 0, "p99_ms": None, "ks": None}
    figures = VersionFigures(500, 0, 0, 0.985, 0.31, 0.2, 0.5, 4.0)
    shadow = ListedVersion(
        version="2", status="SHADOW", share=None, pinned=3, ms=9.0, agreement=0.5, drift=9.0, recent=figures,
        **about, **zero,
    )  # fmt: skip
    retired = ListedVersion(
        version="1", status="RETIRED", share=None, pinned=0, ms=9.0, agreement=None, drift=None, recent=None,
        **about, **zero,
    )  # fmt: skip
    model = ListedModel(
        step="score", model="fraud", policy={"window": "10m", "max_ks": None}, versions=(shadow, retired)
    )
    one, other = version_rows([model])
    assert (one["name"], one["health"], one["why"]) == ("score / fraud / 2", "SHADOW", "+3 pinned")
    assert (one["agreement"], one["drift"], one["ms"], one["who"]) == ("98.5%", "0.310", "0.50", "policy")
    assert (other["agreement"], other["drift"], other["ms"]) == ("", "", "9.00")
    assert (policy_text(model.policy), policy_text(None)) == ("window 10m", "none")


@pytest.mark.parametrize(
    ("status", "is_examined", "failure", "said"),
    [
        ("REGISTERED", True, None, ""),
        ("SERVING", False, None, ""),
        ("REGISTERED", False, None, " It is not examined yet; validate it when it is."),
        ("REGISTERED", False, "it is gone", " It could not be fetched: it is gone. Validate tries it again."),
    ],
)
def test_a_version_says_why_it_cannot_be_validated(
    status: Any, is_examined: bool, failure: str | None, said: str
) -> None:
    """The reason is beside the button."""
    zero: dict[str, Any] = dict.fromkeys(("records", "failures", "slow", "late", "chosen", "pinned"), 0)
    none: dict[str, Any] = dict.fromkeys(("share", "ms", "p99_ms", "agreement", "drift", "ks", "recent"))
    found = ListedVersion(
        version="1", status=status, format="onnx", sha256="", content_bytes=None, is_examined=is_examined,
        failure=failure, uri="/m", metadata={}, changed_by="ann", command="", **zero, **none,
    )  # fmt: skip
    assert examination_text(found) == said


def test_charts_of_models_have_a_line_for_each_version_that_scores() -> None:
    """Each chart has the metrics that exist; slow calls count as failures."""
    now = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    models = {
        "s/m/1": ModelMetrics(records=100, ms=2.0),
        "s/m/2": ModelMetrics(100, 5, 20, agreement=0.9, drift=0.3, ks=0.1, ms=4.0),
    }
    found = [metrics_of_batch(n, now - dt.timedelta(seconds=60 - n), 0.5, models=models) for n in range(3)]
    charts = {chart.name: chart for chart in model_charts(found, now, 120.0)}
    last = {name: {line.name: line.points[-1][1] for line in chart.lines} for name, chart in charts.items()}
    assert last == {
        "model-drift": {"s/m/2": 0.3},
        "model-agreement": {"s/m/2": 90.0},
        "model-failures": {"s/m/1": 0.0, "s/m/2": 25.0},
        "model-time": {"s/m/1": 0.002, "s/m/2": 0.004},
    }
