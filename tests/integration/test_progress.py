"""Progress: a job started from Python reports its progress, up to its last micro-batch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock as ps
from penstock.jobs.runner import JobRunner, Progress, RunHooks
from penstock.jobs.settings import RunSettings


@dataclass
class Visit:
    """A visit, and a file whose existence shows that it is being processed."""

    mark: str


def mark(visit: Visit) -> Visit:
    """Create the file."""
    Path(visit.mark).touch()
    return visit


job = ps.Job("visits")
job.data_stream("visits", schema=Visit).map(mark).sink_to("seen")


@pytest.mark.usefixtures("spark")
def test_progress_is_told_behind_the_last_micro_batch_of_a_job_that_is_stopped(tmp_path: Path) -> None:
    """The micro-batch during which a job is stopped is reported as well."""
    (tmp_path / "visits").mkdir()
    begun = tmp_path / "begun"
    (tmp_path / "visits" / "0.jsonl").write_text(json.dumps({"mark": str(begun)}) + "\n")
    (tmp_path / "seen").mkdir()
    stop = threading.Event()
    told: list[int] = []

    def on_progress(progress: Progress) -> None:
        told.append(progress.batch_id)
        if begun.exists():
            stop.set()

    bindings = {"visits": f"jsonl:{tmp_path / 'visits'}", "seen": f"jsonl:{tmp_path / 'seen'}"}
    settings = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"))
    summary = JobRunner(job, settings, code={Path(__file__).name: Path(__file__)}).run(
        stop, RunHooks(on_progress=on_progress)
    )
    assert summary.status == "stopped"
    assert summary.batches > 0
    assert told[-1] == summary.batches - 1
