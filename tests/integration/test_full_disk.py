"""A disk that is full for a moment at worst ends a run, which then continues: nothing is lost or doubled."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from integration_support import write_lines
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from reliability import Injected, noting
from small_disk import SmallDisk, small_disk

from penstock.errors import PenstockError, fault_of, is_retryable
from penstock.jobs.settings import RunSettings

JOB = """
from dataclasses import dataclass

import penstock as ps


@dataclass
class Hit:
    page: int
    number: int


@dataclass
class Seen:
    page: int
    number: int
    hits: int


class Count(ps.ProcessFunction):
    hits = ps.ValueState(int)
    last = ps.ValueState(str)

    def process_record(self, hit, ctx):
        self.hits.set((self.hits.get() or 0) + 1)
        self.last.set(f"{hit.number:06} " * 20)
        yield Seen(hit.page, hit.number, self.hits.get())


job = ps.Job("hits", key_groups=8)
job.data_stream("hits", schema=Hit).key_by("page").process("count", Count(), output=Seen).sink_to("seen")
"""
_FILE = 500
_FULL_S = 6.0


class Hits:
    """A job with its checkpoint and output on a small disk, and its input elsewhere."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        self.disk = disk
        self.job = folder / "full_disk_hits.py"
        self.job.write_text(JOB)
        self.input = folder / "input"
        self.input.mkdir()
        self.output = disk.folder / "seen"
        bindings = {"hits": f"jsonl:{self.input}?max_files_per_batch=1", "seen": f"jsonl:{self.output}"}
        self.settings = RunSettings(bindings=bindings, checkpoint=str(disk.folder / "cp"), parallelism=2)
        self.numbers = 0
        self._random = random.Random(7)
        self._pages: list[int] = []

    def add(self, files: int) -> None:
        for _ in range(files):
            pages = [self._random.randrange(100) for _ in range(_FILE)]
            rows = [{"page": page, "number": len(self._pages) + n} for n, page in enumerate(pages)]
            self._pages += pages
            write_lines(self.input, f"{len(self._pages):08}.jsonl", rows)

    @property
    def done(self) -> bool:
        return len(self.seen()) >= len(self._pages)

    def seen(self) -> list[tuple[int, int, int]]:
        lines = [
            line for path in sorted(self.output.glob("*.jsonl")) for line in path.read_text().splitlines()
        ]
        return [(row["number"], row["page"], row["hits"]) for row in map(json.loads, lines)]

    def expected(self) -> list[tuple[int, int, int]]:
        """Return the output that the model expects."""
        counts: dict[int, int] = {}
        found = []
        for number, page in enumerate(self._pages):
            counts[page] = counts.get(page, 0) + 1
            found.append((number, page, counts[page]))
        return found


def run_into_it(hits: Hits, spark: SparkSession, left: int) -> str:
    """Fill the disk while the job runs; return how the run ended, or None if it has not."""
    with JobInSession(spark, hits.job, hits.settings) as job:
        hits.add(1)
        job.await_true(lambda: hits.done)
        hits.disk.fill(left)
        hits.add(4)
        deadline = time.monotonic() + _FULL_S
        while job.running and time.monotonic() < deadline:
            hits.disk.fill(left)
            time.sleep(0.05)
        if job.running:
            # It waits, or has found enough space: it continues when there is more.
            hits.disk.free()
        # All output may be there while the commit fails.
        try:
            if job.running:
                job.await_true(lambda: hits.done)
                job.stop()
                return "it went on"
            job.wait()
        except PenstockError as e:
            check_told(e)
            return str(e)
        raise AssertionError("the run has ended without an error")


def check_told(error: PenstockError) -> None:
    """Check that the error names the full disk, and that the exit code fits."""
    assert (fault_of(error), is_retryable(error), error.exit_code) == ("external", True, 3), repr(error)


def check_disk(
    tmp_path: Path, spark: SparkSession, amounts: list[int], injected: Injected | None = None
) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        hits = Hits(tmp_path, disk)
        told = []
        for left in amounts:
            if injected is not None:
                injected.add("full disk while a job runs")
            told.append((left, run_into_it(hits, spark, left)))
            disk.fill(left)
            if injected is not None:
                injected.add("start on a full disk")
            # A start is refused before any expensive work, and changes nothing.
            with JobInSession(spark, hits.job, hits.settings) as job, pytest.raises(PenstockError) as caught:
                job.wait()
            check_told(caught.value)
            disk.free()
        with JobInSession(spark, hits.job, hits.settings) as job:
            job.await_true(lambda: hits.done)
            job.stop()
        assert sorted(hits.seen()) == hits.expected(), told
        print(told)


def test_a_run_on_a_full_disk_ends_and_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    """There is no space, or too little for a micro-batch: error and exit code say that the disk is full."""
    check_disk(tmp_path, spark, [0, 40 << 10])


@pytest.mark.chaos
def test_runs_on_a_full_disk_end_and_go_on(tmp_path: Path, spark: SparkSession) -> None:
    """The amounts of space are such that each time another file is the first that cannot be written."""
    amounts = [n << 10 for n in (0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 100, 140, 200)]
    with noting("full disks", "-k runs_on_a_full_disk", "7") as injected:
        check_disk(tmp_path, spark, amounts, injected)
