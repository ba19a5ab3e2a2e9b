"""Plans of micro-batches: which of them a run must complete, and which it may take back."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.plans import Plans, find_pending_plan
from penstock.errors import CheckpointError
from penstock.jobs.query_run import QueryRun, RunHooks
from penstock.jobs.settings import RunSettings
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.rescaling import rescale
from penstock.spark.query import Query

FIRST = 7
LINEAGE = Lineage("abc", "job", 4, 2, ("hits",), first_batch=FIRST)


def log(checkpoint: Checkpoint, name: str, number: int, content: str = "") -> None:
    folder = checkpoint.folder / name
    folder.mkdir(exist_ok=True)
    (folder / str(number)).write_text(content)
    (folder / f".{number}.crc").write_bytes(b"crc")


def checkpoint_with(folder: Path, planned: int, committed: int) -> Checkpoint:
    checkpoint = Checkpoint.open(str(folder))
    checkpoint.begin(LINEAGE)
    for number in range(planned):
        log(checkpoint, "offsets", number)
    for number in range(committed):
        log(checkpoint, "commits", number)
    return checkpoint


@pytest.mark.parametrize(
    ("planned", "committed", "pending"),
    [([], [], None), ([0], [], 0), ([0], [0], None), ([4, 5], [3, 4], 5), ([4, 5], [4, 5], None)],
)
def test_what_is_planned_and_not_committed_is_pending(
    planned: list[int], committed: list[int], pending: int | None
) -> None:
    """Only the newest plan can be pending."""
    assert find_pending_plan(planned, committed) == pending


def test_the_plan_of_a_run_before_is_kept_whatever_this_run_did(tmp_path: Path) -> None:
    """Sinks may hold a part of it, though this run has not started it."""
    checkpoint = checkpoint_with(tmp_path, planned=3, committed=2)
    plans = Plans(checkpoint, LINEAGE)
    assert (plans.pending, plans.newest) == (FIRST + 2, FIRST + 2)
    plans.forget_refused()
    assert batch_numbers(tmp_path / "offsets") == [0, 1, 2]
    assert Plans(checkpoint, LINEAGE).pending == FIRST + 2


def test_a_plan_of_one_s_own_that_was_refused_is_taken_back(tmp_path: Path) -> None:
    """It was not started. A plan that was started stays."""
    checkpoint = checkpoint_with(tmp_path, planned=2, committed=2)
    plans = Plans(checkpoint, LINEAGE)
    assert plans.pending is None
    log(checkpoint, "offsets", 2)
    plans.forget_refused()
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == [".0.crc", ".1.crc", "0", "1"]
    log(checkpoint, "offsets", 2)
    plans.begin(FIRST + 2)
    plans.forget_refused()
    assert batch_numbers(tmp_path / "offsets") == [0, 1, 2]


def test_a_first_plan_that_is_taken_back_takes_its_state_along(tmp_path: Path) -> None:
    """Spark has described the state by then, but expects none when it plans the first micro-batch again."""
    checkpoint = checkpoint_with(tmp_path, planned=0, committed=0)
    plans = Plans(checkpoint, LINEAGE)
    log(checkpoint, "offsets", 0)
    (tmp_path / "state" / "0" / "_metadata").mkdir(parents=True)
    plans.forget_refused()
    assert batch_numbers(tmp_path / "offsets") == []
    assert not (tmp_path / "state").exists()
    log(checkpoint, "offsets", 0)
    log(checkpoint, "commits", 0)
    log(checkpoint, "offsets", 1)
    (tmp_path / "state").mkdir()
    plans.forget_refused()
    assert (tmp_path / "state").exists()


def test_a_plan_behind_the_one_of_a_run_before_is_one_s_own(tmp_path: Path) -> None:
    """It may be taken back once the earlier run's plan is done."""
    checkpoint = checkpoint_with(tmp_path, planned=1, committed=0)
    plans = Plans(checkpoint, LINEAGE)
    plans.begin(FIRST)
    log(checkpoint, "commits", 0)
    assert plans.pending is None
    log(checkpoint, "offsets", 1)
    plans.forget_refused()
    assert batch_numbers(tmp_path / "offsets") == [0]


def test_no_rescaling_within_a_micro_batch(tmp_path: Path) -> None:
    """The error names the micro-batch by the job's number, and says what to do."""
    session: Any = None
    checkpoint = checkpoint_with(tmp_path, planned=3, committed=2)
    with pytest.raises(CheckpointError, match=r"within micro-batch 9\. Start it once with penstock run"):
        rescale(session, checkpoint, 3)


@examples(200)
@given(st.lists(st.sampled_from(["plan", "begin", "commit", "stop", "kill"]), max_size=30))
def test_what_was_begun_is_never_planned_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """With stops and kills at any time, a micro-batch number has only one cut once a sink may know it."""
    checkpoint = Checkpoint.open(str(tmp_path_factory.mktemp("checkpoint")))
    offsets, commits = checkpoint.folder / "offsets", checkpoint.folder / "commits"
    plans, cuts, begun = Plans(checkpoint, LINEAGE), 0, {}
    for step in steps:
        planned, committed = (max(batch_numbers(folder), default=-1) for folder in (offsets, commits))
        if step == "plan" and planned == committed:
            cuts += 1
            log(checkpoint, "offsets", planned + 1, str(cuts))
        elif step == "begin" and planned > committed:
            plans.begin(FIRST + planned)
            cut = (offsets / str(planned)).read_text()
            assert begun.setdefault(planned, cut) == cut
        elif step == "commit" and planned > committed and planned in begun:
            log(checkpoint, "commits", planned)
        elif step == "stop":
            plans.forget_refused()
        if step in ("stop", "kill"):
            plans = Plans(checkpoint, LINEAGE)


class FakeQuery:
    """A query that continues until it is stopped; it counts polls."""

    def __init__(self, on_look: Any) -> None:
        self._on_look = on_look
        self._looks = 0
        self._stopped = False
        self.status = {"isTriggerActive": False}

    @property
    def isActive(self) -> bool:  # Spark's name
        self._looks += 1
        self._on_look(self._looks)
        return not self._stopped

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self._stopped = True


@pytest.mark.parametrize("stops", [False, True])
def test_requests_wait_for_the_micro_batch_of_a_run_before(tmp_path: Path, stops: bool) -> None:
    """They need the job to be between two micro-batches. A signal does not wait, and the plan stays."""
    checkpoint = checkpoint_with(tmp_path, planned=3, committed=2)
    job = ps.Job("job")
    job.data_stream("hits", schema="page INT").sink_to("out")
    plans, stop = Plans(checkpoint, LINEAGE), threading.Event()
    asked: list[bool] = []
    request: Any = SimpleNamespace(action="rescale", drain=False)

    def next_request() -> Any:
        asked.append(plans.pending is None)
        return request

    committer: Any = SimpleNamespace(
        plans=plans,
        closing=False,
        progress=None,
        watch=lambda query: None,
        refresh=lambda: None,
        failure=lambda: None,
        models=None,
        policies=None,
        suspensions=None,
        dumps=SimpleNamespace(step=lambda: None),
        bounds=SimpleNamespace(notes=list),
    )
    requests: Any = SimpleNamespace(next=next_request)
    no: Any = None
    run = QueryRun(RunSettings(), no, committer, checkpoint, requests, stop, RunHooks(), lambda: None)

    def on_look(number: int) -> None:
        if number <= 3:
            assert asked == []
        if number == 3:
            stop.set() if stops else log(checkpoint, "commits", 2)

    query: Any = FakeQuery(on_look)
    found = run.follow(query)
    assert found == (("stopped", None) if stops else ("stopped", request))
    assert asked == ([] if stops else [True])
    assert committer.closing
    plans.forget_refused()
    assert batch_numbers(tmp_path / "offsets") == [0, 1, 2]


def test_a_query_that_goes_on_otherwise_plans_anew(tmp_path: Path) -> None:
    """A plan refused because the query was ending may contain data that is now held; a started one stays."""
    checkpoint = checkpoint_with(tmp_path, planned=3, committed=3)
    plans = Plans(checkpoint, LINEAGE)
    plans.begin(LINEAGE.first_batch + 2)
    log(checkpoint, "offsets", 3)
    history = SimpleNamespace(is_behind=lambda: False)
    committer: Any = SimpleNamespace(plans=plans, history=history, held_bytes=0)
    no: Any = None
    run = QueryRun(RunSettings(), no, committer, checkpoint, no, threading.Event(), RunHooks(), print)
    query = Query(
        no, [], no, "", 2, bounded=False, batch_interval_ms=0, before_batch=no, on_batch=no, on_rest=no
    )
    assert not run.renew(query).holds_data
    assert batch_numbers(tmp_path / "offsets") == [0, 1, 2]
    log(checkpoint, "offsets", 3)
    plans.begin(LINEAGE.first_batch + 3)
    run.renew(query)
    assert batch_numbers(tmp_path / "offsets") == [0, 1, 2, 3]
