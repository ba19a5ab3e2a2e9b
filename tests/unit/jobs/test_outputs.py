"""Outputs and a checkpoint that has gone back: nothing is dropped silently; outputs begin anew once, on
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Outputs
from penstock.errors import CheckpointError, JobDefinitionError
from penstock.jobs.compile import compile_job
from penstock.jobs.events import RunEvents, read_events
from penstock.jobs.outputs import Held, Position, check_outputs, needs_new_outputs, start_new_outputs
from penstock.jobs.settings import RunSettings
from penstock.sinks.base import TaskContext


def position(newest: int, next_batch: int) -> Position:
    return Position("/cp", newest, next_batch)


@pytest.mark.parametrize("held", [[], [-1], [4], [3, 4, -1]])
@pytest.mark.parametrize("wanted", [None, 0, 5])
def test_outputs_that_are_not_ahead_go_on(held: Sequence[int], wanted: int | None) -> None:
    """A pending request for new outputs is ignored then: it was made for a job at another position."""
    sinks = [Held(f"sink {n}", "", batch) for n, batch in enumerate(held)]
    assert not needs_new_outputs(sinks, position(4, 5), wanted)


def test_outputs_that_are_ahead_are_refused_with_both_remedies() -> None:
    """The message names each such sink, its position and the checkpoint's, and the remedies."""
    held = [
        Held("out", "jsonl:/data/out", 9),
        Held("level", "", 4),
        Held("alerts", "kafka://u:p@b:1/t", 5),
    ]
    with pytest.raises(CheckpointError) as caught:
        needs_new_outputs(held, position(4, 5), None)
    text = str(caught.value)
    assert text.startswith(
        "The sink 'out' (jsonl:/data/out) holds micro-batch 9, and the sink 'alerts' (kafka://"
    )
    assert "and the checkpoint /cp knows no later one than 4" in text
    assert "Put back the newest copy of the checkpoint." in text
    assert "--new-outputs-from 5: nothing is dropped" in text
    assert "level" not in text
    assert ":p@" not in text


def test_a_checkpoint_that_knows_nothing_is_behind_too() -> None:
    """Such is a job that was started again under the same lineage."""
    with pytest.raises(CheckpointError, match=r"knows none: .* --new-outputs-from 0:"):
        needs_new_outputs([Held("out", "", 0)], position(-1, 0), None)


def test_new_outputs_are_begun_for_the_micro_batch_that_was_named_only() -> None:
    """A setting that is left in place has no effect at later starts; another number is refused."""
    held = [Held("out", "", 9)]
    assert needs_new_outputs(held, position(4, 5), 5)
    assert needs_new_outputs(held, position(4, 4), 4), "a run was killed within it"
    with pytest.raises(CheckpointError, match=r"--new-outputs-from 7, and not 5:"):
        needs_new_outputs(held, position(6, 7), 5)


def test_the_setting_is_the_number_of_a_micro_batch() -> None:
    """A wrong value is refused before anything starts."""
    with pytest.raises(JobDefinitionError, match="new_outputs_from is -1"):
        RunSettings(new_outputs_from=-1)


class Standing:
    """A job that writes to a folder without Spark; the test writes its logs by hand."""

    def __init__(self, folder: Path) -> None:
        self._job = ps.Job("job", key_groups=4)
        self._job.data_stream("hits", schema="page INT").sink_to("out")
        (folder / "hits").mkdir()
        self.checkpoint = Checkpoint.open(str(folder / "checkpoint"))
        self.out = folder / "out"
        self._settings = RunSettings(
            {"hits": f"jsonl:{folder / 'hits'}", "out": f"jsonl:{self.out}"}, parallelism=2
        )
        self.bound = compile_job(self._job, self._settings, self.checkpoint)

    def start(self, new_outputs_from: int | None = None) -> Outputs | None:
        """Start the sinks, as the runner does."""
        self.bound = compile_job(self._job, self._settings, self.checkpoint)
        found = check_outputs(self.bound, self.checkpoint, self._settings.bindings, new_outputs_from)
        if found is not None:
            events = RunEvents(self.checkpoint.folder, "job", "run", "ann")
            self.bound = start_new_outputs(self.bound, found, self.checkpoint, events)
        self.bound.sinks["out"][0].prepare(self.bound.lineage.output_id, str(self.checkpoint.folder))
        return found

    def plan(self, number: int) -> None:
        """Write a plan, as Spark does."""
        self._log("offsets", number)

    def write(self, number: int, *pages: int) -> None:
        """Write output, as a task and the driver do."""
        sink, record, _ = self.bound.sinks["out"]
        task = sink.task(TaskContext(number, 0, 0, self.bound.lineage.output_id), record)
        if pages:
            task.write(record.batch([SimpleNamespace(page=page) for page in pages]), None)
        sink.commit(number, [task.finish()])

    def commit(self, number: int) -> None:
        """Write a commit, as Spark does."""
        self._log("commits", number)

    def run(self, number: int, *pages: int) -> None:
        """Run a whole micro-batch."""
        self.plan(number)
        self.write(number, *pages)
        self.commit(number)

    def go_back(self, number: int) -> None:
        """Remove what the checkpoint has after a micro-batch."""
        for name in ("offsets", "commits"):
            for path in (self.checkpoint.folder / name).iterdir():
                if int(path.name) > number:
                    path.unlink()

    @property
    def visible(self) -> list[str]:
        return sorted(path.name for path in self.out.glob("part-*"))

    def _log(self, name: str, number: int) -> None:
        folder = self.checkpoint.folder / name
        folder.mkdir(exist_ok=True)
        (folder / str(number)).touch()


@pytest.fixture
def standing(tmp_path: Path) -> Standing:
    return Standing(tmp_path)


def test_a_job_goes_on_where_its_sinks_are_level(standing: Standing) -> None:
    """At the first start, after a micro-batch, within one, and with an older copy of the checkpoint at the
    same position.
    """
    assert standing.start() is None
    standing.run(0, 1)
    assert standing.start() is None
    standing.plan(1)
    standing.write(1, 2)
    assert standing.start() is None
    standing.commit(1)
    standing.run(2)
    standing.go_back(1)
    assert standing.start() is None
    assert standing.visible == ["part-0001-0000000000.jsonl", "part-0001-0000000001.jsonl"]


@pytest.mark.parametrize("taken", [False, True])
def test_a_checkpoint_that_went_back_is_refused_and_changes_nothing(standing: Standing, taken: bool) -> None:
    """This holds also when consumers have taken the newer files."""
    standing.start()
    for number in range(4):
        standing.run(number, number)
    standing.go_back(1)
    if taken:
        for name in standing.visible:
            (standing.out / name).unlink()
    before = sorted(standing.out.rglob("*")), sorted(standing.checkpoint.folder.rglob("*"))
    with pytest.raises(
        CheckpointError, match=r"holds micro-batch 3 of .* knows no later one than 1: .*-from 2:"
    ):
        standing.start()
    with pytest.raises(CheckpointError, match="from 2, and not 1:"):
        standing.start(new_outputs_from=1)
    assert (sorted(standing.out.rglob("*")), sorted(standing.checkpoint.folder.rglob("*"))) == before


def test_outputs_that_begin_anew_drop_nothing_and_do_it_once(standing: Standing) -> None:
    """They get new files; the request has no further effect if it is left in place, and is recorded as an
    event.
    """
    standing.start()
    for number in range(4):
        standing.run(number, number)
    standing.go_back(1)
    found = standing.start(new_outputs_from=2)
    assert found is not None
    assert found.first_batch == 2
    standing.run(2, 20)
    standing.run(3, 30)
    assert standing.visible[-2:] == ["part-0002-0000000002.jsonl", "part-0002-0000000003.jsonl"]
    assert "30" in (standing.out / standing.visible[-1]).read_text()
    assert standing.start(new_outputs_from=2) is None
    stored = standing.checkpoint.stored_lineage()
    assert stored is not None
    assert stored.output_id == found.id != stored.id
    (event,) = [event for event in read_events(standing.checkpoint.folder) if event.event == "outputs-anew"]
    assert (event.by, event.details) == ("ann", {"id": found.id, "first_batch": 2})
    standing.go_back(2)
    with pytest.raises(CheckpointError, match="from 3, and not 2:"):
        standing.start(new_outputs_from=2)


def test_a_run_that_is_killed_before_it_wrote_to_new_outputs_goes_on_with_them(standing: Standing) -> None:
    """The request is fulfilled once it is recorded."""
    standing.start()
    standing.run(0, 1)
    standing.run(1, 2)
    standing.go_back(0)
    found = standing.start(new_outputs_from=1)
    assert standing.start() is None
    assert found is not None
    standing.run(1, 20)
    assert standing.visible[-1] == "part-0002-0000000001.jsonl"
