"""Topic partitions: a replay counts those known when its micro-batch was planned, even if the topic has grown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.topic_partitions import Known, known_from
from penstock.errors import CheckpointError
from penstock.jobs.compile import compile_job
from penstock.jobs.settings import RunSettings
from penstock.sources import kafka_source
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics
from penstock.streams.graph import ProcessNode
from penstock.testing.batch_runner import BatchRunner

ONE, TWO, THREE = ("00000",), ("00000", "00001"), ("00000", "00001", "00002")


@dataclass
class Visit:
    shop: int
    at_ms: int


class Passes(ps.ProcessFunction):
    """Emits each visit."""

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Visit]:
        yield visit


def visits_job() -> ps.Job:
    job = ps.Job("visits", key_groups=4)
    visits = job.data_stream(
        "visits", schema=Visit, event_time="at_ms", watermarks=ps.Watermarks.monotonous()
    )
    visits.key_by("shop").process("passes", Passes()).sink_to("out")
    return job


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.open(str(tmp_path / "checkpoint"))


def bound_partitions(
    checkpoint: Checkpoint, there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, ...]]:
    """Start a run while the topic has some partitions; return the number that each of five micro-batches
    counts.
    """
    monkeypatch.setattr(kafka_source, "preflight", lambda binding: {"visits": len(there)})
    # No broker is there to report the ids of topics.
    topics = SimpleNamespace(known={"visits": KnownTopics(Path(), PartitionNames("visits"))})
    monkeypatch.setattr("penstock.jobs.compile.known_topics", lambda *_: (topics, []))
    bindings = {"visits": "kafka://localhost:9/visits", "out": f"jsonl:{checkpoint.folder.parent / 'out'}"}
    plan = compile_job(visits_job(), RunSettings(bindings=bindings, parallelism=2), checkpoint).plan
    (step,) = [node for node in plan.graph.nodes.values() if isinstance(node, ProcessNode)]
    return [plan.of_batch(number).watermark_rules(step)[0].partitions for number in range(5)]


def spark_did(checkpoint: Checkpoint, planned: int, committed: int) -> None:
    for log, newest in (("offsets", planned), ("commits", committed)):
        (checkpoint.folder / log).mkdir(exist_ok=True)
        for number in range(newest + 1):
            (checkpoint.folder / log / str(number)).touch()


def test_a_replay_counts_the_partitions_of_its_plan(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for repeated starts; a run's own plans count the partitions that it has found."""
    assert bound_partitions(checkpoint, ONE, monkeypatch) == [ONE] * 5
    spark_did(checkpoint, planned=2, committed=1)
    assert bound_partitions(checkpoint, TWO, monkeypatch) == [ONE, ONE, ONE, TWO, TWO]
    assert bound_partitions(checkpoint, THREE, monkeypatch) == [ONE, ONE, ONE, THREE, THREE]
    spark_did(checkpoint, planned=3, committed=2)
    assert bound_partitions(checkpoint, ONE, monkeypatch)[3:] == [THREE, ONE]
    spark_did(checkpoint, planned=3, committed=3)
    assert bound_partitions(checkpoint, TWO, monkeypatch)[4] == TWO


def test_only_what_a_replay_needs_is_kept() -> None:
    """The file does not grow with the number of starts."""
    kept: list[Known] = []
    for planned in range(20):
        kept, replayed = known_from(kept, planned, True, {"visits": (str(planned),)})
        assert len(kept) <= 2
        assert replayed == ({"visits": (str(planned - 1),)} if planned else None)


def test_a_broken_file_is_told(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing would change results."""
    (checkpoint.folder / "partitions.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"partitions\.json cannot be read .* Restore the file"):
        bound_partitions(checkpoint, ONE, monkeypatch)


def test_partitions_that_are_added_hold_time_back_only_in_later_micro_batches() -> None:
    """So an attempt and its replay emit the same."""
    attempt = BatchRunner(visits_job(), partitions={"visits": ONE})
    attempt.run({"visits": [("00000", [Visit(1, 1_000)])]})
    replay, wrong = attempt.copy(), attempt.copy()
    replay.plan = dataclasses.replace(
        attempt.plan, partitions={"visits": TWO}, replayed=(1, {"visits": ONE})
    ).of_batch(1)
    wrong.plan = dataclasses.replace(attempt.plan, partitions={"visits": TWO})
    records = {"visits": [("00000", [Visit(1, 2_000)])]}
    first, again, other = (job.run(records) for job in (attempt, replay, wrong))
    assert first.times("passes") == again.times("passes")
    assert first.watermarks("passes", other) == ({1_999}, {999})
