"""`penstock metrics` and `penstock events`: what they print of a checkpoint."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from control_checkpoint import AT, make_checkpoint, receipts, write_receipts
from prometheus_client.parser import text_string_to_metric_families
from small_metrics import metrics_of_batch
from typed_commands import typed
from typer.testing import Result

import penstock.cli.checkpoint_job
import penstock.cli.metrics_tables
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.jobs.events import Event, record_event
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import BatchMetrics, BatchMetricsWriter, Lag, StepBatchMetrics, Totals
from penstock.metrics.latency import Latency


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the checkpoint of a job that has ended, with two micro-batches, events and receipts."""
    made = make_checkpoint(tmp_path / "checkpoint")
    Checkpoint(made).begin(Lineage("abc", "rooms", 8, 2, ("visits",)))
    writer = BatchMetricsWriter(made)
    for batch in range(2):
        writer.append(metrics(batch))
    writer.close()
    write_receipts(made, 1, receipts("a", "APPLIED", 1))
    record_event(
        made, event(0, "started", by="ann", job_id="rooms-1", details={"settings": {"strict": True}})
    )
    record_event(
        made, event(9, "failed", job_id="rooms-1", batch=1, details={"reason": "the disk [x] is full"})
    )
    return made


def event(seconds: float, kind: Any, **more: Any) -> Event:
    return Event(at=AT + dt.timedelta(seconds=seconds), event=kind, job="rooms", **more)


def metrics(batch: int) -> BatchMetrics:
    return metrics_of_batch(
        batch,
        AT + dt.timedelta(seconds=2 * batch),
        1.0,
        phases={"planning": 0.25, "processing": 0.7},
        cores=4,
        records_in={"visits": 1500},
        records_out={"out": 30},
        lag={
            "visits": Lag(files=3, bytes=5 << 20, seconds=12.5),
            "commands": Lag(files=0, bytes=0, seconds=0.0),
        },
        steps={"count": StepBatchMetrics(1500, 1.5, 20_000, 1.0, 3 << 20, 2048, 2, 0, AT)},
        memory=MemoryUse(100 << 20, 1 << 30, 2 << 30, 1 << 29, 1 << 31, 1.5),
        latency={"out": Latency((0, 0, 0, 0, 0, 0, 15, 0, 0, 15), 0.5, 2.0 if batch else 0.03)},
        totals=Totals(
            batches=batch + 1,
            busy_seconds=batch + 1.0,
            records_in={"visits": 1500 * (batch + 1)},
            records_out={"out": 30 * (batch + 1)},
            step_records={"count": 1500 * (batch + 1)},
            dead_letters=4,
            late={"count": 2},
            commands={"applied": 3, "degraded": 0, "rejected": 1},
        ),
    )


def penstock_(*arguments: str | Path, code: int = 0) -> Result:
    found = typed(*arguments)
    assert found.exit_code == code, found.output
    return found


def interrupted_after(looks: int, between: Callable[[int], None]) -> Callable[[float], None]:
    """Replace a module's sleep: do something between two polls, and then raise Ctrl-C."""
    count = 0

    def sleep(seconds: float) -> None:
        nonlocal count
        if count == looks:
            raise KeyboardInterrupt
        between(count)
        count += 1

    return sleep


def test_metrics_as_tables(checkpoint: Path) -> None:
    """They show the newest micro-batch, and rates; for a job that has ended, those at its end."""
    text = penstock_("metrics", checkpoint).stdout
    for part in (
        "rooms (rooms-1), not running",
        "mode                micro-batches",
        "took 1.00 s: planning 0.25, processing 0.70",
        "at work             67% of the last 3 s, in 0.67 micro-batches a second of 1.00 s",
        "tasks               2 for each step, 4 at a time",
        "3 applied, 1 rejected",
        "driver 100.0 MiB, JVM 1.0 GiB (heap 512.0 MiB of 2.0 GiB), workers 2.0 GiB; garbage 1.5 s",
    ):
        assert part in text, text
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["visits"] == ["visits", "3,000", "1,000.0", "3", "files", "5.0", "MiB", "12.5", "s"]
    assert lines["commands"][-1] == "-"
    assert lines["out"] == ["out", "60", "20.0", "10.0", "ms", "29.0", "ms", "29.8", "ms", "2.00", "s"]
    assert lines["count"][:7] == ["count", "3,000", "1,000.0", "1.50", "20,000", "3.0", "MiB"]
    assert lines["count"][7:] == ["2.0", "KiB", "2", "2026-01-02T03:04:05.000Z"]


def test_metrics_as_json(checkpoint: Path) -> None:
    """It is one line, with the metrics as stored."""
    found = json.loads(penstock_("metrics", checkpoint, "-o", "json").stdout)
    assert found.keys() == {"running", "rates", "metrics"}
    assert found["running"] is False
    assert msgspec.convert(found["metrics"], BatchMetrics) == metrics(1)
    assert found["rates"]["records_in"] == {"visits": 1000.0}
    latency = found["rates"]["latency"]["out"]
    assert (latency["outputs"], latency["p50_s"], latency["longest_s"]) == (60, 0.01, 2.0)
    assert (
        json.loads(penstock_("metrics", checkpoint, "-o", "json", "--window", "1").stdout)["rates"]["seconds"]
        == 1.0
    )


def test_metrics_for_prometheus(checkpoint: Path) -> None:
    """The format is Prometheus' text format, and it shows that the job does not run."""
    text = penstock_("metrics", checkpoint, "-o", "prometheus").stdout
    values = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert values["penstock_running"] == 0
    assert values["penstock_records_in_total"] == 3000
    refused = penstock_("metrics", checkpoint, "-o", "prometheus", "--watch", code=2)
    assert "Error: --watch works with tables or JSON" in refused.stderr


def test_metrics_of_a_job_without_metrics(tmp_path: Path) -> None:
    """It has run no micro-batch yet; a folder that is no checkpoint is an error."""
    Checkpoint(tmp_path).begin(Lineage("abc", "rooms", 8, 2, ("visits",)))
    assert "has no metrics yet" in penstock_("metrics", tmp_path).stdout.replace("\n", " ")
    assert json.loads(penstock_("metrics", tmp_path, "-o", "json").stdout)["metrics"] is None
    assert penstock_("metrics", tmp_path, "-o", "prometheus").stdout == ""
    for command in ("metrics", "events"):
        assert "is not a checkpoint of a job" in penstock_(command, tmp_path / "no", code=2).stderr
        assert not (tmp_path / "no").exists()


def test_watching_as_lines(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first line, new metrics follow until Ctrl-C."""
    writer = BatchMetricsWriter(checkpoint)
    sleep = interrupted_after(2, lambda look: writer.append(metrics(2 + look)))
    monkeypatch.setattr(penstock.cli.checkpoint_job, "time", SimpleNamespace(sleep=sleep))
    lines = penstock_("metrics", checkpoint, "-o", "json", "--watch", code=130).stdout.splitlines()
    assert json.loads(lines[0])["metrics"]["batch"] == 1
    assert [json.loads(line)["batch"] for line in lines[1:]] == [2, 3]


def test_watching_as_tables(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal the tables are printed again when something changes."""
    writer = BatchMetricsWriter(checkpoint)
    sleep = interrupted_after(4, lambda look: writer.append(metrics(2)) if look == 1 else None)
    monkeypatch.setattr(penstock.cli.metrics_tables, "time", SimpleNamespace(sleep=sleep))
    text = penstock_("metrics", checkpoint, "--watch", code=130).stdout
    assert text.count("rooms (rooms-1)") == 2
    assert "newest micro-batch  2," in text


def test_events_as_text(checkpoint: Path) -> None:
    """One line per event, newest last, including events from receipts."""
    lines = penstock_("events", checkpoint).stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["2026-01-02T03:04:05.000Z", "started", "ann"],
        ["2026-01-02T03:04:06.000Z", "commands", "ann"],
        ["2026-01-02T03:04:14.000Z", "failed", "-"],
    ]
    assert lines[0].endswith("rooms-1  settings.strict=true")
    assert "applied=1" in lines[1]
    assert lines[2].endswith('rooms-1  batch 1  reason="the disk [x] is full"')
    assert len(penstock_("events", checkpoint, "--last", "1").stdout.splitlines()) == 1
    assert "commands" not in penstock_("events", checkpoint, "--no-commands").stdout


def test_events_as_json(checkpoint: Path) -> None:
    """One object a line, with all fields."""
    found = [json.loads(line) for line in penstock_("events", checkpoint, "-o", "json").stdout.splitlines()]
    assert [each["event"] for each in found] == ["started", "commands", "failed"]
    assert all(each.keys() == {"at", "event", "job", "job_id", "by", "batch", "details"} for each in found)


def test_events_are_followed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New events follow the existing ones, until Ctrl-C."""
    from penstock.jobs import events

    sleep = interrupted_after(2, lambda look: record_event(checkpoint, event(20 + look, "dump")))
    monkeypatch.setattr(events, "time", SimpleNamespace(sleep=sleep))
    text = penstock_("events", checkpoint, "--follow", "--last", "1", "-o", "json", code=130).stdout
    assert [json.loads(line)["event"] for line in text.splitlines()] == ["failed", "dump", "dump"]


def test_the_checkpoint_may_be_in_the_environment(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable works as for `penstock control`."""
    monkeypatch.setenv("PENSTOCK_CHECKPOINT", str(checkpoint))
    assert json.loads(penstock_("metrics", "-o", "json").stdout)["metrics"]["batch"] == 1
    assert len(penstock_("events").stdout.splitlines()) == 3
