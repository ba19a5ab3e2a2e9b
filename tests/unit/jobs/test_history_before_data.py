"""At a start, existing records of control streams are read before data if they exceed one micro-batch."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.jobs.compile import compile_job
from penstock.jobs.control_history import ControlHistory, control_history
from penstock.jobs.query_run import QueryRun, RunHooks
from penstock.jobs.settings import RunSettings


class Pass(ps.ConnectedProcessFunction):
    """Passes every record on."""

    def process_control(self, record: Any, ctx: ps.Context) -> None:
        """Nothing to do."""

    def process_record(self, record: Any, ctx: ps.Context) -> list[Any]:
        return [record]


class Standing:
    """A job with two control streams besides commands; the test writes its Spark logs by hand."""

    def __init__(self, folder: Path, limit: str) -> None:
        job = ps.Job("job", key_groups=4)
        hits = job.data_stream("hits", schema="page INT").key_by("page")
        rules = job.control_stream("rules", schema="page INT").key_by("page")
        others = job.control_stream("others", schema="page INT").key_by("page")
        hits.connect(rules, others).process("pass", Pass(), output="page INT").sink_to("out")
        for name in ("hits", "rules", "others"):
            (folder / name).mkdir()
        bindings = {name: f"jsonl:{folder / name}" for name in ("hits", "rules", "others", "out")}
        bindings["rules"] += limit
        self.folder = folder
        self.checkpoint = Checkpoint.open(str(folder / "checkpoint"))
        self.bound = compile_job(job, RunSettings(bindings=bindings, parallelism=2), self.checkpoint)

    def write(self, stream: str, count: int) -> None:
        for number in range(count):
            (self.folder / stream / f"{number}.jsonl").write_text('{"page": 1}\n')

    def log(self, number: int, *, commit: bool, **positions: int) -> None:
        """Write one micro-batch into Spark's logs."""
        lines = [
            json.dumps({"position": positions[name]}) if name in positions else "-"
            for name in self.bound.lineage.streams
        ]
        for name in ("offsets", *(["commits"] if commit else [])):
            (self.checkpoint.folder / name).mkdir(exist_ok=True)
            (self.checkpoint.folder / name / str(number)).write_text("\n".join(["v1", "{}", *lines]) + "\n")

    def history(self) -> ControlHistory:
        return control_history(self.bound.sources, self.checkpoint, self.bound.lineage)


def test_a_long_history_is_read_to_its_end_and_no_further(tmp_path: Path) -> None:
    """Committed records count as read, and records that arrive later need not be read first."""
    job = Standing(tmp_path, "?max_bytes_per_batch=5000")
    for stream in ("hits", "rules", "others"):
        job.write(stream, 3)
    history = job.history()
    assert history.ends == {"rules": 3}, "one micro-batch takes all of the others"
    assert history.note is not None
    assert "('rules')" in history.note
    job.write("rules", 5)
    assert history.is_behind(), "nothing was committed yet"
    job.log(0, commit=True, rules=1)
    assert history.is_behind()
    job.log(1, commit=False, rules=3)
    assert history.is_behind(), "a plan is not enough"
    job.log(1, commit=True, rules=3)
    assert not history.is_behind()
    assert history.note is None


def test_the_next_start_looks_anew(tmp_path: Path) -> None:
    """It continues from the end of the newest plan, which is run first."""
    job = Standing(tmp_path, "?max_bytes_per_batch=5000")
    job.write("rules", 4)
    job.log(0, commit=True, rules=1)
    assert job.history().ends == {"rules": 4}
    job.log(1, commit=False, rules=3)
    assert not job.history().is_behind(), "one micro-batch takes the rest, beside data"


@pytest.mark.parametrize("limit", ["", "?max_files_per_batch=1"])
def test_data_waits_for_no_history_that_fits_or_has_a_pace(tmp_path: Path, limit: str) -> None:
    """A rate limit is the user's choice, and what fits into one micro-batch precedes its data anyway."""
    job = Standing(tmp_path, limit)
    job.write("rules", 3)
    assert not job.history().is_behind()
    assert job.history().note is None


class FakeQuery:
    """A query that commits a micro-batch at each poll, and ends after a number of polls."""

    def __init__(self, job: Standing, positions: list[int], *, ends: bool) -> None:
        self._job = job
        self._positions = positions
        self._ends = ends
        self.looks = 0
        self.status = {"isTriggerActive": False}
        self.stopped = False

    @property
    def isActive(self) -> bool:  # as Spark's
        if self.looks < len(self._positions):
            self._job.log(self.looks, commit=True, rules=self._positions[self.looks])
            self.looks += 1
            return not self.stopped
        return not self._ends and not self.stopped

    def exception(self) -> None:
        """Return None: the query does not fail."""

    def stop(self) -> None:
        self.stopped = True

    def awaitTermination(self) -> None:  # as Spark's
        """Return True: the query has ended."""


def followed(job: Standing, query: FakeQuery, *, bounded: bool) -> str:
    """Return how the runner continues after a query that holds data back."""
    committer: Any = SimpleNamespace(
        plans=SimpleNamespace(pending=None),
        closing=False,
        progress=None,
        held_bytes=0,
        history=job.history(),
        watch=lambda query: None,
        refresh=lambda: None,
        failure=lambda: None,
        models=None,
        policies=None,
        suspensions=None,
        dumps=SimpleNamespace(step=lambda: None),
        bounds=SimpleNamespace(notes=list),
    )
    requests: Any = SimpleNamespace(next=lambda: None)
    no: Any = None
    settings = RunSettings(bounded=bounded)
    stop = threading.Event()
    run = QueryRun(settings, no, committer, job.checkpoint, requests, stop, RunHooks(), lambda: None)
    assert run.should_hold()
    status, request = run.follow(query, holds_data=True)  # type: ignore[arg-type]
    assert request is None
    assert not run.should_hold()
    return status


@pytest.mark.parametrize(("bounded", "positions"), [(False, [1, 2, 3, 3]), (True, [1, 3]), (True, [1, 2])])
def test_the_job_goes_on_with_data_when_the_history_is_read(
    tmp_path: Path, bounded: bool, positions: list[int]
) -> None:
    """The query that read the history is stopped; one that ends by itself has read everything."""
    job = Standing(tmp_path, "?max_bytes_per_batch=5000")
    job.write("rules", 3)
    query = FakeQuery(job, positions, ends=bounded)
    assert followed(job, query, bounded=bounded) == "renewed"
    assert query.stopped is (positions[-1] == 3)
