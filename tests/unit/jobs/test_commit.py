"""Following a run: what steps report of a micro-batch is counted under the right step."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from modelled_store import ModelledStore

import penstock as ps
from penstock.base.instants import instant_of
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.control.receipts import StepTime
from penstock.jobs.commit import BatchCommitter, RunServices
from penstock.jobs.compile import compile_job
from penstock.jobs.fetched_removal import fetched_removal
from penstock.jobs.metrics_recorder import MetricsRecorder
from penstock.jobs.settings import RunSettings
from penstock.metrics.batch_metrics import BatchMetricsWriter
from penstock.objects.object_stores import Place
from penstock.runtime.packed_rows import time_row
from penstock.sources import fetched
from penstock.testing.memory_sinks import MemorySink


def report(kind: str, name: str, total: int, partition: int = 0) -> Any:
    return SimpleNamespace(kind=kind, name=name, partition=partition, total=total, body=b"")


def time(step: str, watermark_ms: int | None, held_by: str | None = None, partition: int = 0) -> Any:
    row = time_row(step, partition, StepTime(watermark_ms, held_by))
    kind, name, slot, total, body = msgspec.msgpack.decode(row.body)
    return SimpleNamespace(kind=kind, name=name, partition=slot, total=total, body=body)


class Latest(ps.WindowFunction):
    def process(self, key: int, records: Any, ctx: ps.WindowContext) -> None:
        pass


def test_what_windows_took_and_did_not_is_counted_by_step(tmp_path: Path) -> None:
    """Counts add up over micro-batches and tasks; event-time progress does not count emitted records."""
    committer = following(tmp_path)
    committer.on_batch(0, [time("windows", 1_000), report("late", "windows", 2)])
    committer.on_batch(1, [report("late", "windows", 3, 1), report("without_window", "windows", 1)])
    committer.on_batch(2, [report("in_windows", "windows", 4), report("in_windows", "windows", 5, 1)])
    summary = committer.summary("id", "finished")
    assert (summary.late, summary.without_window) == ({"windows": 5}, {"windows": 1})
    assert summary.in_windows == {"windows": 9}
    assert (summary.records_out, summary.dead_letters) == ({"out": 0}, 0)


def test_event_time_is_that_of_the_slowest_task(tmp_path: Path) -> None:
    """The slowest task's last report counts, with its lag behind the clock and what holds it back."""
    committer = following(tmp_path)
    assert committer.summary("id", "stopped").event_time == {}
    committer.on_batch(0, [time("windows", None, "visits/0"), time("windows", 5_000, "visits/1", 1)])
    found = committer.summary("id", "stopped").event_time["windows"]
    assert (found.watermark, found.behind_s, found.held_by) == (None, None, "visits/0")
    committer.on_batch(1, [time("windows", 9_000, "visits/0")])
    before = dt.datetime.now(dt.UTC)
    found = committer.summary("id", "stopped").event_time["windows"]
    assert (found.watermark, found.held_by) == (instant_of(5_000), "visits/1")
    assert found.behind_s is not None
    assert -0.001 <= found.behind_s - (before - instant_of(5_000)).total_seconds() < 60
    told = msgspec.json.decode(msgspec.json.encode(dataclasses.asdict(committer.summary("id", "stopped"))))
    assert told["event_time"]["windows"].keys() == {"watermark", "behind_s", "held_by"}
    assert told["event_time"]["windows"]["watermark"] == "1970-01-01T00:00:05Z"
    committer.on_batch(2, [time("windows", 2**62, None), time("windows", 2**62, None, 1)])
    found = committer.summary("id", "stopped").event_time["windows"]
    assert (found.watermark, found.behind_s, found.held_by) == (f"{2**62} ms", None, None)


class MarkedSink(MemorySink):
    """A sink that records the mark when it publishes a micro-batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.marks: list[int] = []

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:  # as Sink
        self.marks.append(marked(self.folder))


def marked(checkpoint: Path) -> int:
    """Return the micro-batch whose outputs may exist, according to the disk."""
    path = checkpoint / "begun.json"
    return json.loads(path.read_bytes())["batch"] if path.exists() else -1


def test_a_micro_batch_is_marked_before_the_first_sink_has_it(tmp_path: Path) -> None:
    """The mark follows everything that a replay needs, and is written while tasks work."""
    committer = following(tmp_path)
    sink = MarkedSink(tmp_path / "checkpoint")
    committer.bound.sinks["out"] = (sink, *committer.bound.sinks["out"][1:])
    for batch in (0, 1):
        committer.before_batch(batch)
        committer.on_batch(batch, [report("out", "out", 1)])
    assert sink.marks == [0, 1]


def test_tasks_that_make_records_visible_begin_behind_the_mark(tmp_path: Path) -> None:
    """The tasks of an exactly-once Kafka sink, for example, start after the mark."""
    committer = following(tmp_path)
    sink = MemorySink(commits_in_tasks=True)
    committer.bound.sinks["out"] = (sink, *committer.bound.sinks["out"][1:])
    committer.before_batch(0)
    assert marked(tmp_path / "checkpoint") == 0


def test_progress_shows_event_time(tmp_path: Path) -> None:
    """Progress shows it while the job runs, as the summary does at the end."""
    committer = following(tmp_path)
    committer.on_batch(0, [time("windows", 5_000)])
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: None))
    committer.watch(query)
    committer.refresh()
    assert committer.progress.event_time["windows"].watermark == instant_of(5_000)


def test_what_was_counted_goes_on_when_a_job_is_rescaled(tmp_path: Path) -> None:
    """Counts continue over a rescaling: it is still one run."""
    before = following(tmp_path)
    before.on_batch(0, [came("visits", 3)])
    watch = RunServices(before.ownership, before.dumps, before.recorder, progress=before.progress)
    after = BatchCommitter(before.bound, Checkpoint(tmp_path / "checkpoint"), watch)
    assert after.progress.batch_id == 0
    after.on_batch(1, [came("visits", 4)])
    summary = after.summary("id", "stopped")
    assert (summary.batches, summary.records_in, summary.records_out) == (2, {"visits": 7}, {"out": 0})


def test_what_commands_referred_to_leaves_a_store(tmp_path: Path) -> None:
    """The next run also knows when a content was read."""
    store = ModelledStore()
    store.objects |= {"a": b"{}", "b": b"{}"}
    before = following(tmp_path)
    stored: Any = SimpleNamespace(stored=SimpleNamespace(place_of=lambda name: Place("s3", "bucket", name)))
    removal = fetched_removal(stored, 1)
    services = RunServices(before.ownership, before.dumps, before.recorder, fetched=removal)
    with mock.patch.object(fetched, "ObjectFolder", return_value=store):
        for batch, names in enumerate(("a", "b", "")):
            run = BatchCommitter(before.bound, Checkpoint(tmp_path / "checkpoint"), services)
            run.on_batch(batch, [report("fetched", name, 1) for name in names])
    assert set(store.objects) == {"b"}
    assert fetched_removal(Checkpoint(tmp_path / "checkpoint"), 1) is None


def came(stream: str, count: int) -> Any:
    return SimpleNamespace(kind="in", name=stream, partition=0, total=count, body=b"")


def following(tmp_path: Path) -> BatchCommitter:
    """Return the follower of a job with windows."""
    job = ps.Job("job", key_groups=3)
    visits = job.data_stream(
        "visits", schema="page INT, at BIGINT", event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    windows = visits.key_by("page").window(ps.TumblingWindows("1s"))
    windows.process("windows", Latest(), output="n INT").sink_to("out")
    (tmp_path / "visits").mkdir()
    bindings = {"visits": f"jsonl:{tmp_path}/visits", "out": f"jsonl:{tmp_path}/out"}
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    bound = compile_job(job, RunSettings(bindings=bindings), checkpoint)
    ownership: Any = SimpleNamespace(check=lambda: None)
    dumps: Any = SimpleNamespace(enqueue=lambda batch_id, told: None)
    recorder = MetricsRecorder(BatchMetricsWriter(checkpoint.folder), bound, "job-1")
    return BatchCommitter(bound, checkpoint, RunServices(ownership, dumps, recorder))
