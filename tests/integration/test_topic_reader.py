"""Ranges of a Kafka topic are read exactly, whatever was read before, on a real broker."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration_support import RunJob, read_lines
from kept_numbers import keep_job, write_numbers
from transaction_marks import await_marks

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import ExternalSystemError, RecordsLostError
from penstock.machine.kafka_broker import KafkaBroker
from penstock.records.schemas import record_type
from penstock.sources import gathered_messages, topic_reader
from penstock.sources.base import MISSING, SourceChunk, Split
from penstock.sources.gathered_messages import WantedParts
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics
from penstock.sources.topic_reader import TopicReader

NAMES = ("00000", "00001")
Rows = dict[str, dict[int, tuple[bytes | None, bytes | None]]]


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"ranges-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, len(NAMES))
    return name


@pytest.fixture
def binding(kafka: KafkaBroker, topic: str) -> KafkaBinding:
    found = parse_binding("numbers", f"kafka://{kafka.bootstrap}/{topic}?start=earliest", "data")
    assert isinstance(found, KafkaBinding)
    return found


def open_reader(binding: KafkaBinding, *, keys: bool = False) -> TopicReader:
    return TopicReader(binding, {}, WantedParts(keys=keys), PartitionNames(binding.topic))


@pytest.fixture
def reader(binding: KafkaBinding) -> Iterator[TopicReader]:
    found = open_reader(binding, keys=True)
    yield found
    found.close()


def write(
    kafka: KafkaBroker, topic: str, transactions: list[tuple[int, bool]]
) -> tuple[Rows, dict[str, int]]:
    """Write transactions for each partition, committed or aborted; return the committed records, and the ends."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    rows: Rows = {name: {} for name in NAMES}
    ends = dict.fromkeys(NAMES, 0)
    for number, (count, commits) in enumerate(transactions):
        producer.begin_transaction()
        for row in range(count):
            for partition, name in enumerate(NAMES):
                value = None if row % 5 == 4 else b"%d/%d/%d" % (number, row, partition)
                key = b"%d" % row if row % 3 else None
                producer.produce(topic, value, key, partition=partition)
                if commits:
                    rows[name][ends[name] + row] = (value, key)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()
        # The marker at the end of a transaction takes an offset.
        ends = {name: end + count + 1 for name, end in ends.items()}
    await_marks(kafka.bootstrap, topic)
    return rows, ends


def read(reader: TopicReader, ranges: Mapping[str, tuple[int, int]]) -> Rows:
    found: Rows = {name: {} for name in ranges}
    for chunk in reader.read(ranges):
        assert chunk.raw is not None
        assert chunk.keys is not None
        for offset, value, key in zip(
            chunk.offsets.to_pylist(), chunk.raw.to_pylist(), chunk.keys.to_pylist(), strict=True
        ):
            assert offset not in found[chunk.partition]
            found[chunk.partition][offset] = (value, key)
    return found


def within(rows: Rows, ranges: Mapping[str, tuple[int, int]]) -> Rows:
    return {
        name: {offset: row for offset, row in rows[name].items() if start <= offset < end}
        for name, (start, end) in ranges.items()
    }


def test_any_range_is_read_exactly(kafka: KafkaBroker, topic: str, binding: KafkaBinding) -> None:
    """Two workers alternate; ranges go forward, back, and through transactions, aborted ones and their markers."""
    chance = random.Random(7)
    rows, ends = write(kafka, topic, [(chance.randint(1, 9), chance.random() < 0.6) for _ in range(30)])
    readers = [open_reader(binding, keys=True) for _ in range(2)]
    at = dict.fromkeys(NAMES, 0)
    for _ in range(60):
        if all(at[number] >= end for number, end in ends.items()) or chance.random() < 0.1:
            at = {number: chance.randint(0, end) for number, end in ends.items()}
        ranges = {}
        for name in chance.sample(NAMES, chance.randint(1, len(NAMES))):
            end = min(ends[name], at[name] + chance.randint(1, 20))
            if end > at[name]:
                ranges[name] = (at[name], end)
                at[name] = end
        assert read(chance.choice(readers), ranges) == within(rows, ranges), ranges
    for one in readers:
        one.close()


def test_aborted_records_are_read_if_the_uri_says_so(
    kafka: KafkaBroker, topic: str, binding: KafkaBinding
) -> None:
    """By default they are left out, and so are records of an open transaction."""
    _, ends = write(kafka, topic, [(3, True), (4, False)])
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    for isolation, count in ((None, 3), ("read_committed", 3), ("read_uncommitted", 8)):
        client = {} if isolation is None else {"isolation.level": isolation}
        known = KnownTopics(Path(), PartitionNames(topic), dict.fromkeys(ends, 0))
        log = KafkaLog(replace(binding, client=client), client, known)
        log.freeze()
        end = log.latest(log.beginning(), limited=False)
        first = NAMES[0]
        assert end[first] == ends[first] + (isolation == "read_uncommitted")
        chunks = log.read(log.splits({first: 0}, {first: end[first]}, 1), record_type("value BINARY"))
        assert sum(len(chunk.offsets) for chunk in chunks) == count
        log.reader().close()
        topic_reader._readers.clear()
    producer.abort_transaction()


def test_a_task_that_ends_early_costs_the_next_one_nothing(
    kafka: KafkaBroker, topic: str, reader: TopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records fetched for a range that was not read to its end are read again."""
    monkeypatch.setattr(gathered_messages, "_CHUNK_RECORDS", 10)
    rows, ends = write(kafka, topic, [(100, True)])
    ranges = {number: (0, end) for number, end in ends.items()}
    for taken in (1, 5, 12):
        chunks = reader.read(ranges)
        for _ in range(taken):
            next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert read(reader, ranges) == rows


def test_chunks_do_not_depend_on_how_records_come(
    kafka: KafkaBroker, topic: str, binding: KafkaBinding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay gives the same chunks, limited by records or bytes."""
    _, ends = write(kafka, topic, [(70, True), (30, True)])
    ranges = {number: (3, end) for number, end in ends.items()}

    def cut(consumed_at_once: int) -> list[tuple[str, pa.Array]]:
        monkeypatch.setattr(topic_reader, "_CONSUMED_AT_ONCE", consumed_at_once)
        one = open_reader(binding)
        found = [(chunk.partition, chunk.offsets.to_pylist()) for chunk in one.read(ranges)]
        one.close()
        return found

    monkeypatch.setattr(gathered_messages, "_CHUNK_RECORDS", 13)
    by_records = cut(1)
    assert {len(offsets) for _, offsets in by_records[:-1]} >= {13}
    assert by_records == cut(7) == cut(1000)
    monkeypatch.setattr(gathered_messages, "_CHUNK_BYTES", 40)
    by_bytes = cut(1)
    assert len(by_bytes) > len(by_records)
    assert by_bytes == cut(7) == cut(1000)


def test_what_is_taken_in_steps_is_one_chunk_for_each_partition(
    kafka: KafkaBroker, topic: str, binding: KafkaBinding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that follows a topic consumes as much as fits into a cache, until it has what it was asked for."""
    rows, ends = write(kafka, topic, [(70, True), (30, True)])
    monkeypatch.setattr(topic_reader, "_CONSUMED_AT_ONCE", 7)
    one = open_reader(binding)
    one.follow(dict.fromkeys(ends, 0))
    counts, reached = [], dict.fromkeys(ends, 0)
    offsets: dict[str, list[int]] = {name: [] for name in ends}
    deadline_s = time.monotonic() + 30
    while one.known_ends != ends and time.monotonic() < deadline_s:
        found = one.take(0.1, 20)
        # One chunk for each partition, where the last one ended.
        assert {split.partition: split.start for split, _ in found}.items() <= reached.items()
        assert len({split.partition for split, _ in found}) == len(found)
        for split, chunk in found:
            offsets[split.partition] += chunk.offsets.to_pylist()
            reached[split.partition] = split.end
        counts.append(sum(len(chunk.offsets) for _, chunk in found))
    one.close()
    assert offsets == {name: list(found) for name, found in rows.items()}
    # Seven and seven and the six that are left of twenty, unless the ends of partitions come between them.
    assert 14 < max(counts) <= 20


def test_records_that_were_deleted_are_no_gap(kafka: KafkaBroker, topic: str, reader: TopicReader) -> None:
    """The error names the topic and the partition."""
    _, ends = write(kafka, topic, [(20, True)])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 1, 10)]).values():
        answer.result(30)
    with pytest.raises(
        RecordsLostError,
        match=f"{topic}.* has deleted records of partition 1 .*: the offsets 0 to 9\\..*missing=skip",
    ):
        read(reader, {number: (0, end) for number, end in ends.items()})
    assert read(reader, {"00001": (10, ends["00001"])})


def delete(kafka: KafkaBroker, topic: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        answer.result(30)


def test_a_reader_goes_on_where_records_are(kafka: KafkaBroker, topic: str, binding: KafkaBinding) -> None:
    """With missing=skip, records deleted between planning and reading are a gap of the range, wherever it ends."""
    rows, ends = write(kafka, topic, [(30, True)])
    one = open_reader(replace(binding, missing="skip"), keys=True)
    assert read(one, {"00001": (0, 5)}) == within(rows, {"00001": (0, 5)})
    delete(kafka, topic, 0, 12)
    chunks = list(one.read({"00000": (3, 7), "00001": (5, 8)}))
    assert [(chunk.partition, len(chunk.offsets), len(chunk.bad)) for chunk in chunks] == [
        ("00000", 0, 1),
        ("00001", 3, 0),
    ]
    assert "offsets 3 to 6 of partition 0" in chunks[0].bad[0].reason
    found = list(one.read({"00000": (7, 20)}))
    assert [bad.offset for chunk in found for bad in chunk.bad] == [7]
    assert sum(len(chunk.offsets) for chunk in found) == 8
    one.close()
    followed = open_reader(replace(binding, missing="skip"))
    followed.follow({"00000": 2, "00001": 0})
    taken: list[tuple[Split, SourceChunk]] = []
    while followed.known_ends != ends:
        taken += followed.take(0.1)
    ranges = [(split.path, split.start, split.end) for split, _ in taken if split.partition == "00000"]
    assert ranges == [(MISSING, 2, 12), ("", 12, 30)]
    followed.close()


def test_a_job_goes_on_with_a_counted_gap(
    run_job: RunJob, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """This holds in both modes; one dead letter says which offsets are missing."""
    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/{topic}?start=earliest&missing=skip",
        "kept": f"jsonl:{tmp_path}/kept",
    }
    write_numbers(kafka, topic, range(10))
    run_job(keep_job(), bindings)
    write_numbers(kafka, topic, range(10, 50))
    delete(kafka, topic, 0, 40)
    run_job(keep_job(), bindings)
    write_numbers(kafka, topic, range(50, 90))
    delete(kafka, topic, 0, 80)
    # The client of the previous run may have prefetched records that are deleted now.
    bindings["numbers"] += "&client.id=anew"
    run_job(keep_job(), bindings, checkpoint_interval_ms=1000)
    kept = sorted(one["n"] for one in read_lines(tmp_path / "kept"))
    assert kept == [*range(10), *range(40, 50), *range(80, 90)]
    letters = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert [(one["partition"], one["offset"]) for one in letters] == [("00000", 10), ("00000", 50)]
    assert "offsets 10 to 39 of partition 0" in letters[0]["reason"]
    assert "offsets 50 to 79 of partition 0" in letters[1]["reason"]


def test_a_job_says_what_it_has_lost(run_job: RunJob, kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """It was stopped for longer than the topic's retention, and ends without committing anything."""
    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/{topic}?start=earliest",
        "kept": f"jsonl:{tmp_path}/kept",
    }
    write_numbers(kafka, topic, range(10))
    run_job(keep_job(), bindings)
    kept = read_lines(tmp_path / "kept")
    write_numbers(kafka, topic, range(10, 200))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        answer.result(30)
    write_numbers(kafka, topic, range(200, 300))
    # The client of the previous run may have prefetched deleted records, and then nothing is lost.
    bindings["numbers"] += "&client.id=anew"
    with pytest.raises(ExternalSystemError, match=f"{topic}.* has deleted records of partition 0"):
        run_job(keep_job(), bindings)
    assert read_lines(tmp_path / "kept") == kept


def test_a_reader_that_follows_a_topic_knows_what_it_has_not_read(
    kafka: KafkaBroker, topic: str, reader: TopicReader
) -> None:
    """It knows their number, and a bound of their age: newer than the last record read. Chunks have all
    records' times.
    """
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    written_ms = time.time_ns() // 1_000_000 - 60_000
    for number in range(100):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=written_ms + number)
    producer.flush()
    reader.follow({"00000": 0, "00001": 0})
    count = 0
    while not count:
        count += take_times(reader, written_ms)
    lag = reader.lag()
    assert lag.records == 100 - count
    assert lag.waited_ms is not None
    assert 60_000 - 100 <= lag.waited_ms < 120_000
    while count < 100:
        count += take_times(reader, written_ms)
    # The broker reports the end some milliseconds later.
    assert reader.lag().records == 0
    assert reader.lag().waited_ms == 0


def test_who_asks_what_a_reader_has_not_read_does_not_wait_for_its_next_records(
    kafka: KafkaBroker, topic: str, reader: TopicReader
) -> None:
    """The end of an interval asks, while the reader's thread waits for records that may take long to arrive."""
    reader.follow({"00000": 0, "00001": 0})
    answered = threading.Event()

    def take_all() -> None:
        while not answered.is_set():
            reader.take(5.0)

    taking = threading.Thread(target=take_all)
    taking.start()
    begun_s = time.monotonic()
    for _ in range(100):
        lag = reader.lag()
    took_s = time.monotonic() - begun_s
    answered.set()
    write_numbers(kafka, topic, range(1))
    taking.join()
    assert lag.records == 0
    assert took_s < 2


def take_times(reader: TopicReader, written_ms: int) -> int:
    """Take the available records, and return how many have times, each checked against its offset."""
    count = 0
    for split, chunk in reader.take(0.2, 10):
        assert chunk.times is not None
        times = [chunk.times.times_ms[0], chunk.times.times_ms[-1]]
        assert written_ms + split.start <= times[0] <= times[1] == written_ms + split.end - 1
        assert sum(chunk.times.counts) == len(chunk.offsets)
        count += len(chunk.offsets)
    return count


def test_an_offset_that_the_topic_does_not_have_is_an_error(reader: TopicReader) -> None:
    """As after another topic has taken its name while it is followed; the next start compares their ids."""
    reader.follow({"00000": 1000})
    with pytest.raises(ExternalSystemError, match=r"no record at offset 1000, .* start the job again, and"):
        reader.take(30.0)
