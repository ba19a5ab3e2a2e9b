"""Following a run: what steps tell of a micro-batch is counted where it belongs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import penstock as ps
from penstock.jobs.binding import bind_job
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.following import Follower, Watch
from penstock.jobs.settings import RunSettings


def report(kind: str, name: str, total: int, partition: int = 0) -> Any:
    return SimpleNamespace(kind=kind, name=name, partition=partition, total=total, body=b"")


class Latest(ps.WindowFunction):
    def process(self, key: int, records: Any, ctx: ps.WindowContext) -> None:
        pass


def test_what_windows_did_not_take_is_counted_by_step(tmp_path: Path) -> None:
    """Over micro-batches and tasks; a watermark that moved is no record that left."""
    job = ps.Job("job", key_groups=3)
    visits = job.data_stream(
        "visits", schema="page INT, at BIGINT", event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    windows = visits.key_by("page").window(ps.TumblingWindows("1s"))
    windows.process("windows", Latest(), output="n INT").sink_to("out")
    (tmp_path / "visits").mkdir()
    bindings = {"visits": f"jsonl:{tmp_path}/visits", "out": f"jsonl:{tmp_path}/out"}
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    bound = bind_job(job, RunSettings(bindings=bindings), checkpoint)
    ownership: Any = SimpleNamespace(check=lambda: None)
    dumps: Any = SimpleNamespace(want=lambda batch_id, told: None)
    recorder: Any = SimpleNamespace(take=lambda *taken: None)
    follower = Follower(bound, checkpoint, Watch(ownership, dumps, recorder))
    follower.on_batch(0, [report("watermark", "windows", 1_000), report("late", "windows", 2)])
    follower.on_batch(1, [report("late", "windows", 3, 1), report("without_window", "windows", 1)])
    summary = follower.summary("id", "finished")
    assert (summary.late, summary.without_window) == ({"windows": 5}, {"windows": 1})
    assert (summary.records_out, summary.dead_letters) == ({"out": 0}, 0)
