"""A Kafka topic that was deleted and recreated is not continued at the old offsets, on a real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from integration_support import read_lines
from kept_numbers import keep_job, write_numbers
from pyspark.sql import SparkSession

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.topic_offsets import find_ends
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import CheckpointError, ExternalSystemError
from penstock.machine.kafka_broker import KafkaBroker
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.sources.topic_identity import TopicIdentity


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


@pytest.fixture
def patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer of the broker a check passes."""
    monkeypatch.setattr("penstock.sources.topic_identity._LOOK_S", 60.0)


def delete(kafka: KafkaBroker, topic: str) -> None:
    """Delete a topic, and wait until the broker no longer knows it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "allow.auto.create.topics": False})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while admin.list_topics(topic, timeout=10).topics[topic].error is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def make_anew(kafka: KafkaBroker, topic: str, values: Iterable[int]) -> None:
    delete(kafka, topic)
    kafka.create_topic(topic, 1)
    write_numbers(kafka, topic, values)


def binding(kafka: KafkaBroker, topic: str, stream: str = "numbers") -> KafkaBinding:
    found = parse_binding(stream, f"kafka://{kafka.bootstrap}/{topic}?start=earliest", "data")
    assert isinstance(found, KafkaBinding)
    return found


def test_a_topic_that_has_outgrown_the_old_offset_is_refused(
    run_job: Any, spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """The error has both ids and the remedy; a job from a savepoint is refused too, unless it drops the
    positions.
    """
    bindings = {"numbers": binding(kafka, topic).uri, "kept": f"jsonl:{tmp_path}/kept"}
    write_numbers(kafka, topic, range(10))
    run_job(keep_job(), bindings)
    write_numbers(kafka, topic, range(10, 12))
    assert run_job(keep_job(), bindings).records_in == {"numbers": 2}, "the same topic is read on"
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    known = msgspec.json.decode((checkpoint.folder / "sources" / "numbers.topic").read_bytes())
    for kind in ("savepoint", "dump"):
        capture(spark, checkpoint, Capture(kind, str(tmp_path / kind), "arrow", kind))  # type: ignore[arg-type]

    make_anew(kafka, topic, range(100, 125))
    with pytest.raises(CheckpointError, match=rf"'{topic}' .* recreated\. .*{known['id']}.*--no-positions"):
        run_job(keep_job(), bindings)
    for kind in ("savepoint", "dump"):
        begins = {"checkpoint": str(tmp_path / f"from-{kind}"), f"from_{kind}": str(tmp_path / kind)}
        with pytest.raises(CheckpointError, match="recreated"):
            run_job(keep_job(), bindings, keep_positions=True, **begins)
    assert len(read_lines(tmp_path / "kept")) == 12
    fresh = {"checkpoint": str(tmp_path / "fresh"), "from_savepoint": str(tmp_path / "savepoint")}
    summary = run_job(keep_job(), bindings, keep_positions=False, **fresh)
    assert (summary.records_in, summary.state) == ({"numbers": 25}, {"keep": 37})


def test_commands_of_a_topic_that_was_made_anew_are_not_read_on(
    run_job: Any, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """The checkpoint tracks the topic of commands like the others."""
    (tmp_path / "numbers").mkdir()
    bindings = {name: f"jsonl:{tmp_path}/{name}" for name in ("numbers", "kept")}
    bindings["commands"] = binding(kafka, topic, "commands").uri
    write_numbers(kafka, topic, range(2))
    run_job(keep_job(), bindings)
    make_anew(kafka, topic, range(5))
    with pytest.raises(CheckpointError, match=rf"'commands': the topic '{topic}' .* recreated"):
        run_job(keep_job(), bindings)


@pytest.mark.usefixtures("patient_checks")
def test_a_topic_that_is_made_anew_while_the_job_reads_is_not_committed(
    run_job: Any, kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its records reach a sink, since the topic is checked after the last record of a micro-batch."""
    write_numbers(kafka, topic, range(3))
    check = TopicIdentity.check

    def made_anew_before(topics: TopicIdentity) -> None:
        make_anew(kafka, topic, range(10))
        check(topics)

    monkeypatch.setattr(TopicIdentity, "check", made_anew_before)
    bindings = {"numbers": binding(kafka, topic).uri, "kept": f"jsonl:{tmp_path}/kept"}
    with pytest.raises(CheckpointError, match="recreated"):
        run_job(keep_job(), bindings)
    assert read_lines(tmp_path / "kept") == []


@pytest.mark.usefixtures("patient_checks")
def test_an_interval_of_a_topic_that_is_made_anew_is_not_durable(
    run_job: Any, kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time tasks commit their outputs once an interval is durable, so the topic is checked before that."""
    kept = f"kept-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(kept, 1)
    write_numbers(kafka, topic, range(3))
    check = TopicIdentity.check

    def made_anew_before(topics: TopicIdentity) -> None:
        make_anew(kafka, topic, range(10))
        check(topics)

    monkeypatch.setattr(TopicIdentity, "check", made_anew_before)
    sink = f"kafka://{kafka.bootstrap}/{kept}?delivery=exactly-once"
    bindings = {"numbers": binding(kafka, topic).uri, "kept": sink}
    with pytest.raises(CheckpointError, match="recreated"):
        run_job(keep_job(), bindings, checkpoint_interval_ms=500)
    assert not list((tmp_path / "checkpoint").rglob("intervals/[0-9]*"))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    written = parse_binding("kept", sink, "sink")
    assert isinstance(written, KafkaBinding)
    assert find_ends(admin, written, [(kept, 0)]) == {(kept, 0): 0}


def begin(
    kafka: KafkaBroker, topic: str, folder: Path, read_to: dict[str, int] | None, *, read: str = ""
) -> list[str]:
    position = None if read_to is None else {read or topic: read_to}
    return TopicIdentity(folder).begin(binding(kafka, topic), {}, position)


def test_a_topic_without_an_id_is_still_refused_when_it_is_too_short(
    kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before 2.8 give none; a warning says so."""
    write_numbers(kafka, topic, range(3))
    monkeypatch.setattr("penstock.sources.topic_identity._id_of", lambda _: "")
    told = begin(kafka, topic, tmp_path, None)
    assert "give topics no ids" in told[0]
    assert begin(kafka, topic, tmp_path, {"0": 3}) == told
    with pytest.raises(CheckpointError, match=r"ends at offset 3 in partition 0, .* read up to offset 4"):
        begin(kafka, topic, tmp_path, {"0": 4})
    with pytest.raises(CheckpointError, match="no longer has partition 1"):
        begin(kafka, topic, tmp_path, {"0": 3, "1": 0})
    monkeypatch.undo()
    assert begin(kafka, topic, tmp_path, {"0": 3}) == [], "the brokers are newer now"
    known = (tmp_path / "numbers.topic").read_bytes()
    make_anew(kafka, topic, range(5))
    with pytest.raises(CheckpointError, match="recreated"):
        begin(kafka, topic, tmp_path, {"0": 3})
    assert (tmp_path / "numbers.topic").read_bytes() == known, "the refusal is the same the next time"
    assert begin(kafka, topic, tmp_path, None) == [], "nothing was read yet, so any topic will do"
    assert begin(kafka, topic, tmp_path, {"0": 3}) == []


def test_another_topic_or_a_damaged_file_is_told(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Each error says what to do."""
    begin(kafka, topic, tmp_path, None)
    kafka.create_topic(f"{topic}-other", 1)
    with pytest.raises(
        CheckpointError, match=f"has read the topic '{topic}', but its binding names .*-other"
    ):
        begin(kafka, f"{topic}-other", tmp_path, {"0": 0}, read=topic)
    (tmp_path / "numbers.topic").write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"numbers\.topic cannot be read .*Restore the file"):
        begin(kafka, topic, tmp_path, {"0": 0})


@pytest.mark.usefixtures("patient_checks")
def test_a_topic_that_is_deleted_while_the_job_reads_is_told(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """A broker that does not answer for a while is a different case, and the next check decides."""
    topics = TopicIdentity(tmp_path)
    topics.begin(binding(kafka, topic), {}, None)
    topics.check()
    delete(kafka, topic)
    with pytest.raises(ExternalSystemError, match=rf"'{topic}' .* disappeared while the job read it"):
        topics.check()
