"""A job whose rescaling fails continues unchanged."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from integration_support import write_lines
from job_in_session import JobInSession
from pyspark.sql import SparkSession

from penstock.jobs.commit import BatchCommitter
from penstock.jobs.requests import Answer, answer_to, new_request, post
from penstock.jobs.settings import RunSettings
from penstock.savepoints import rescaling

JOB = """
from dataclasses import dataclass

import penstock as ps


@dataclass
class Hit:
    page: int


class Count(ps.ProcessFunction):
    hits = ps.ValueState(int)

    def process_record(self, record, ctx):
        self.hits.set((self.hits.get() or 0) + 1)
        yield Seen(record.page, self.hits.get())


@dataclass
class Seen:
    page: int
    hits: int


job = ps.Job("hits", key_groups=8)
job.data_stream("hits", schema=Hit).key_by("page").process("count", Count(), output=Seen).sink_to("seen")
"""


def job_of_hits(folder: Path, module: str) -> tuple[Path, RunSettings]:
    """Return the job's file, and the settings with which it counts the 20 pages."""
    code = folder / f"{module}.py"
    code.write_text(JOB)
    write_lines(folder / "hits", "1.jsonl", [{"page": n} for n in range(20)])
    bindings = {"hits": f"jsonl:{folder}/hits", "seen": f"jsonl:{folder}/seen"}
    return code, RunSettings(bindings=bindings, checkpoint=str(folder / "cp"), parallelism=2)


def test_a_job_whose_rescaling_fails_goes_on(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers with the cause, continues to count, and is rescaled when asked again."""
    code, settings = job_of_hits(tmp_path, "failing_rescale_hits")
    checkpoint, folder = Path(settings.checkpoint), tmp_path / "hits"
    write_seed = rescaling.write_seed

    def full(*arguments: Any) -> Any:
        write_seed(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(checkpoint / "seed.next"))

    def committed(number: int) -> bool:
        files = list((tmp_path / "seen").glob("*.jsonl"))
        return sum(len(path.read_text().splitlines()) for path in files) >= number

    def answered(tasks: int) -> Answer:
        # This process holds the lock, so `ask` would believe that the job has ended.
        request = new_request("rescale", parallelism=tasks)
        post(checkpoint, request)
        job.await_true(lambda: answer_to(checkpoint, request.id) is not None)
        found = answer_to(checkpoint, request.id)
        assert found is not None
        return found

    with JobInSession(spark, code, settings) as job:
        job.await_true(lambda: committed(20))
        monkeypatch.setattr(rescaling, "write_seed", full)
        told = answered(3).error
        assert told.startswith(
            "The job continues with 2 tasks: The rescaling to 3 tasks failed: No space left on device"
        )
        assert not {"seed.next", "rescaling"} & {path.name for path in checkpoint.iterdir()}
        write_lines(folder, "2.jsonl", [{"page": n} for n in range(20)])
        job.await_true(lambda: committed(40))
        monkeypatch.setattr(rescaling, "write_seed", write_seed)
        assert answered(4).details["after"] == 4
        write_lines(folder, "3.jsonl", [{"page": n} for n in range(20)])
        job.await_true(lambda: committed(60))
        assert job.stop().state == {"count": 20}
    assert sorted(set(seen_of(tmp_path / "seen"))) == [(n, h) for n in range(20) for h in (1, 2, 3)]


def seen_of(folder: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for p in folder.glob("*.jsonl") for line in p.read_bytes().splitlines()]
    assert len(rows) == 60
    return [(row["page"], row["hits"]) for row in rows]


def test_a_job_is_rescaled_before_its_first_micro_batch(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That micro-batch was planned, and the rescaling is refused; the files that Spark has written for it do
    no harm.
    """
    code, settings = job_of_hits(tmp_path, "early_rescale_hits")
    checkpoint = Path(settings.checkpoint)
    request = new_request("rescale", parallelism=4)
    before_batch = BatchCommitter.before_batch

    def ask_first(committer: BatchCommitter, batch_id: int) -> None:
        if answer_to(checkpoint, request.id) is None:
            post(checkpoint, request)
            while not committer.closing:
                time.sleep(0.01)
        before_batch(committer, batch_id)

    monkeypatch.setattr(BatchCommitter, "before_batch", ask_first)
    with JobInSession(spark, code, settings) as job:
        job.await_true(lambda: answer_to(checkpoint, request.id) is not None)
        monkeypatch.undo()
        job.await_true(lambda: any((tmp_path / "seen").glob("*.jsonl")))
        assert job.stop().state == {"count": 20}
