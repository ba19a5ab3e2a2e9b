"""The newest dead letters, read from where a job writes them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import Binding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.jobs.dead_letters import format_record, newest_letters
from penstock.operators.record_blocks import DeadLetter
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sinks.file_sink import FilesSink

KIND = record_type(DeadLetter)


def letter(number: int) -> DeadLetter:
    return DeadLetter(f'field "x"\nis {number}', "hits", "count", "00000", number, bytes([0, 255, number]))


def at(place: str) -> Binding:
    return parse_binding("dead-letters", place, "sink")


def write(binding: Binding, folder: Path, batches: list[int], each: int) -> None:
    """Write dead letters as the job's own sink does."""
    sink = FilesSink(binding)  # type: ignore[arg-type]
    sink.prepare("lineage", str(folder / "checkpoint"))
    for batch in batches:
        task = sink.task(TaskContext(batch, 0, 0, "lineage"), KIND)
        task.write(KIND.batch([letter(batch * each + place) for place in range(each)]), None)
        sink.commit(batch, [task.finish()])


def offsets(binding: Binding, most: int) -> list[int]:
    return [found.letter.offset for found in newest_letters(binding, most)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_the_newest_of_a_folder_are_found(tmp_path: Path, form: str) -> None:
    """They come in the order of writing, in any format, with the micro-batch that wrote them."""
    binding = at(f"{form}:{tmp_path / 'letters'}")
    assert newest_letters(binding, 5) == []
    write(binding, tmp_path, [3, 11], 4)
    found = newest_letters(binding, 6)
    assert [one.letter for one in found] == [letter(number) for number in (14, 15, 44, 45, 46, 47)]
    assert [one.batch for one in found] == [3, 3, 11, 11, 11, 11]
    assert offsets(binding, 1) == [47]
    assert offsets(binding, 100) == [12, 13, 14, 15, 44, 45, 46, 47]
    newest = max(path.stat().st_mtime_ns for path in (tmp_path / "letters").glob("part-*"))
    assert found[-1].at_ms == newest // 1_000_000


def test_of_a_large_file_the_end_is_read(tmp_path: Path) -> None:
    """Reading starts at the first whole line of the tail."""
    binding = at(f"jsonl:{tmp_path}")
    large = msgspec.structs.replace(letter(0), raw=b"x" * 100_000)
    lines = [msgspec.json.encode(msgspec.structs.replace(large, offset=number)) for number in range(100)]
    (tmp_path / "part-0001-0000000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = offsets(binding, 1000)
    assert found == list(range(100))[-len(found) :]
    assert 20 < len(found) < 40


def test_what_is_no_dead_letter_is_told(tmp_path: Path) -> None:
    """The error names the file; a destination that cannot be read back is named as such."""
    (tmp_path / "part-0001-0000000000.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(CheckpointError, match=r"part-0001-0000000000.jsonl does not hold dead letters"):
        newest_letters(at(f"jsonl:{tmp_path}"), 1)
    (tmp_path / "part-0001-0000000000.jsonl").rename(tmp_path / "notes.jsonl")
    assert newest_letters(at(f"jsonl:{tmp_path}"), 1) == []
    with pytest.raises(BindingError, match="nobody can read them again"):
        newest_letters(at("console:"), 1)


@pytest.fixture(scope="module")
def broker() -> tuple[Producer, str]:
    """Return a mock broker inside Kafka's client."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (found,) = producer.list_topics(timeout=10).brokers.values()
    return producer, f"{found.host}:{found.port}"


def test_the_newest_of_a_topic_are_found(broker: tuple[Producer, str]) -> None:
    """They come from all partitions; messages of other writers are skipped."""
    producer, servers = broker
    for number in range(20):
        producer.produce(
            "letters", msgspec.json.encode(letter(number)), partition=number % 3, timestamp=1000 + number
        )
    producer.produce("letters", b"no letter", partition=0, timestamp=500)
    assert producer.flush(10) == 0
    binding = at(f"kafka://{servers}/letters")
    found = newest_letters(binding, 5, 20)
    assert [one.letter for one in found] == [letter(number) for number in range(15, 20)]
    assert [one.at_ms for one in found] == [1000 + number for number in range(15, 20)]
    assert {one.batch for one in found} == {None}


def test_a_broker_that_does_not_answer_is_told() -> None:
    """The error comes within the timeout."""
    with pytest.raises(ExternalSystemError, match="no Kafka broker answers"):
        newest_letters(at("kafka://127.0.0.1:1/letters"), 5, 0.5)


@pytest.mark.parametrize(
    ("raw", "most", "told"),
    [
        (b'{"a": 1}', 100, ("text", '{"a": 1}')),
        ("ä€ü".encode(), 4, ("text", "ä")),
        ("ä€ü".encode(), 5, ("text", "ä€")),
        (b"\xff\xfe", 100, ("base64", "//4=")),
        (b"ab\xffcdef", 4, ("base64", "YWL/Yw==")),
        (b"", 10, ("text", "")),
    ],
)
def test_records_are_readable(raw: bytes, most: int, told: tuple[str, str]) -> None:
    """Bytes are shown as text where they are valid text, also when a character is cut in two."""
    assert format_record(raw, most) == told
