"""A plan is taken back on request, but only while no output contains a part of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from control_checkpoint import append_lines, receipts

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import COUNTS_FILE, mark_begun, newest_begun
from penstock.commands.receipt_segments import SegmentWriter
from penstock.errors import CheckpointError, JobDefinitionError
from penstock.jobs.compile import compile_job
from penstock.jobs.replan import describe_pending, take_back_plan
from penstock.jobs.settings import RunSettings
from penstock.runtime.cuts import batch_numbers
from penstock.sinks.base import TaskContext


class Standing:
    """A job that stopped within micro-batch 2."""

    def __init__(self, folder: Path) -> None:
        job = ps.Job("job", key_groups=4)
        job.data_stream("hits", schema="page INT").sink_to("out")
        (folder / "hits").mkdir()
        self.bindings = {"hits": f"jsonl:{folder / 'hits'}", "out": f"jsonl:{folder / 'out'}"}
        self.checkpoint = Checkpoint.open(str(folder / "checkpoint"))
        self.bound = compile_job(job, RunSettings(self.bindings, parallelism=2), self.checkpoint)
        for name, count in (("offsets", 3), ("commits", 2)):
            (self.checkpoint.folder / name).mkdir()
            for number in range(count):
                (self.checkpoint.folder / name / str(number)).write_text("v1")
                (self.checkpoint.folder / name / f".{number}.crc").write_bytes(b"crc")
        for sink, _, _ in self.bound.sinks.values():
            sink.prepare(self.bound.lineage.output_id, str(self.checkpoint.folder))

    def replan(self, wanted: int | None) -> bool:
        return take_back_plan(self.bound, self.checkpoint, self.bindings, wanted)

    def write(self, number: int) -> None:
        """Write output, as a task and the driver do."""
        sink, record, _ = self.bound.sinks["out"]
        task = sink.task(TaskContext(number, 0, 0, self.bound.lineage.output_id), record)
        task.write(record.batch([SimpleNamespace(page=1)]), None)
        sink.commit(number, [task.finish()])

    @property
    def planned(self) -> list[int]:
        return batch_numbers(self.checkpoint.folder / "offsets")


@pytest.fixture
def job(tmp_path: Path) -> Standing:
    return Standing(tmp_path)


def test_the_plan_of_the_unfinished_micro_batch_is_taken_back_once(job: Standing) -> None:
    """The request takes the number of the micro-batch; a checkpoint at another position is not changed."""
    job.write(1)
    told = describe_pending(job.bound, job.checkpoint)
    assert told is not None
    assert "--replan 2" in told
    for other in (None, 0, 1, 3):
        assert not job.replan(other)
    assert job.planned == [0, 1, 2]
    assert job.replan(2)
    assert job.planned == [0, 1]
    assert not (job.checkpoint.folder / "offsets" / ".2.crc").exists()
    assert not job.replan(2)
    assert describe_pending(job.bound, job.checkpoint) is None


def test_a_plan_is_kept_when_a_sink_has_a_part_of_it(job: Standing) -> None:
    """The error names the sink and says what to do."""
    job.write(2)
    with pytest.raises(
        CheckpointError, match=r"2 cannot be planned again: the sink 'out' .* holds micro-batch 2"
    ):
        job.replan(2)
    assert job.planned == [0, 1, 2]


def test_a_request_that_was_followed_refuses_no_later_start(job: Standing) -> None:
    """A managed job restarts with its original settings, though the new plan may already be in outputs."""
    assert job.replan(2)
    (job.checkpoint.folder / "offsets" / "2").write_text("v1")
    assert job.replan(2), "nothing has a part of the new plan either"
    (job.checkpoint.folder / "offsets" / "2").write_text("v1")
    job.write(2)
    assert not job.replan(2)
    assert job.planned == [0, 1, 2]


@pytest.mark.parametrize("note", ["counts", "receipts"])
def test_a_plan_is_kept_when_the_checkpoint_notes_its_outputs(job: Standing, note: str) -> None:
    """Outputs are noted once all sinks have committed, and some sinks may keep no record of their own."""
    if note == "counts":
        job.checkpoint.save(COUNTS_FILE, {"batch": 2})
    else:
        lines = msgspec.json.Encoder().encode_lines(receipts("a", "APPLIED", 2))
        append_lines(SegmentWriter(job.checkpoint.folder), 2, lines)
    with pytest.raises(CheckpointError, match=r"has its receipts\. .*without --replan"):
        job.replan(2)
    assert job.planned == [0, 1, 2]


def test_a_micro_batch_that_was_begun_and_has_no_output_is_planned_anew(job: Standing) -> None:
    """The mark that outputs may exist is removed with the plan; otherwise it would demand the plan at each
    start.
    """
    mark_begun(job.checkpoint, 2)
    assert job.replan(2)
    assert newest_begun(job.checkpoint) == 1


def test_the_setting_is_the_number_of_a_micro_batch() -> None:
    """A wrong value is refused before anything starts."""
    with pytest.raises(JobDefinitionError, match="replan is -1"):
        RunSettings(replan=-1)
