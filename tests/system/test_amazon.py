"""Kinesis and DynamoDB on real emulators: records are read once, in key order, and written as specified."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from amazon_servers import LOGIN, DynamoServer, KinesisServer
from conformance_page import note_conformance
from conforming_sinks import opening
from conforming_sources import journaling
from journaled_records import journaled
from receiving_process import receiver
from silent_server import in_haste

from penstock.amazon import service_clients
from penstock.bindings.parse import parse_binding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError, RecordsLostError
from penstock.jobs.job_sinks import open_sink
from penstock.kinesis import kinesis_receiver
from penstock.records.schemas import record_type
from penstock.sinks.base import RecordOrigin, RejectingTask, Rejection, Sink, TaskContext
from penstock.stores import dynamo_sink
from penstock.testing.connectors import SinkUnderTest, SourceUnderTest, StoredRecord, check_sink, check_source

RECEIVING = Path(__file__).with_name("receiving_process.py")
ANY_KEY = "Kinesalite and Dynalite take any key"
ANSWERS_SOON = (service_clients, "_ANSWER_S", 1)
READING = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
CHANGE = record_type("_change STRING NOT NULL, sensor BIGINT NOT NULL, celsius DOUBLE")


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set AWS credentials."""
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisServer]:
    with KinesisServer(tmp_path_factory.mktemp("kinesis")) as started:
        yield started


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    with DynamoServer(tmp_path_factory.mktemp("dynamodb")) as started:
        yield started


def receive(folder: Path, uri: str) -> None:
    """Receive all records of the stream."""
    with receiver(folder, uri, bounded=True) as found:
        found.wait_for_end(threading.Event())


def numbered(numbers: range, keys: int = 7) -> list[tuple[str, bytes]]:
    return [(str(number % keys), b"%d" % number) for number in numbers]


def assert_each_once_in_order(found: list[bytes], numbers: range, keys: int = 7) -> None:
    read = [int(one) for one in found]
    assert sorted(read) == list(numbers)
    for key in range(keys):
        of_key = [number for number in read if number % keys == key]
        assert of_key == sorted(of_key)


def test_children_are_read_after_their_parents(kinesis: KinesisServer, tmp_path: Path) -> None:
    """Through splits, a merge, and runs between them, each record is read once, and those of a key in order."""
    name = kinesis.create("resharded", 2)
    kinesis.put(name, numbered(range(300)))
    receive(tmp_path, kinesis.uri(name))
    first, second = kinesis.open_shards(name)
    kinesis.split(name, first)
    kinesis.put(name, numbered(range(300, 600)))
    _, upper, _ = kinesis.open_shards(name)
    kinesis.merge(name, upper, second)
    kinesis.put(name, numbered(range(600, 900)))
    for _ in range(2):
        receive(tmp_path, kinesis.uri(name))
        assert_each_once_in_order(journaled(tmp_path), range(900))


def test_a_start_is_kept(kinesis: KinesisServer, tmp_path: Path) -> None:
    """Records between the job's start and its first record are not skipped by a later run."""
    name = kinesis.create("started")
    kinesis.put(name, numbered(range(10)))
    uri = kinesis.uri(name, "&start=latest")
    receive(tmp_path, uri)
    assert journaled(tmp_path) == []
    kinesis.put(name, numbered(range(10, 20)))
    receive(tmp_path, uri)
    # A run that knows only the second of the start may read some records of the same second again.
    assert [int(one) for one in journaled(tmp_path)][-10:] == list(range(10, 20))


def test_nothing_is_missed_after_the_start(kinesis: KinesisServer, tmp_path: Path) -> None:
    """No shard misses records, though first requests to many shards take a while."""
    name = kinesis.create("many", 30)
    kinesis.put(name, numbered(range(200)))
    with receiver(tmp_path, kinesis.uri(name, "&start=latest")) as found:
        kinesis.put(name, [(str(number), b"%d" % number) for number in range(200, 400)])
        deadline = time.monotonic() + 20
        while len(journaled(tmp_path)) < 200 and time.monotonic() < deadline:
            assert found.error is None
            time.sleep(0.05)
    assert sorted(map(int, journaled(tmp_path))) == list(range(200, 400))


def test_a_killed_receiver_goes_on_after_its_last_record(kinesis: KinesisServer, tmp_path: Path) -> None:
    """The kill comes before or after a journal write; shards are split meanwhile."""
    name = kinesis.create("killed", 2)
    chance = random.Random(5)
    for run, waits in enumerate(("waits", "")):
        kinesis.put(name, numbered(range(run * 500, run * 500 + 500)))
        command = [sys.executable, str(RECEIVING), str(tmp_path), kinesis.uri(name), waits]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while process.stdout.readline().strip() in ("connected", ""):
                assert process.poll() is None
            process.kill()
        kinesis.split(name, chance.choice(kinesis.open_shards(name)))
    receive(tmp_path, kinesis.uri(name))
    assert_each_once_in_order(journaled(tmp_path), range(1000))


def test_the_server_may_be_away(tmp_path: Path) -> None:
    """The receiver reconnects by itself."""
    (tmp_path / "server").mkdir()
    with KinesisServer(tmp_path / "server") as server:
        name = server.create("away")
        server.put(name, numbered(range(100)))
        with receiver(tmp_path / "journal", server.uri(name)) as found:
            server.kill()
            server.start()
            server.put(name, numbered(range(100, 200)))
            while len(journaled(tmp_path / "journal")) < 200:
                assert found.error is None
                time.sleep(0.05)
    assert_each_once_in_order(journaled(tmp_path / "journal"), range(200))


def test_records_that_may_be_deleted_are_an_error(
    kinesis: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock decides; with missing=skip the stream continues at the oldest remaining record."""
    name = kinesis.create("expired")
    kinesis.put(name, numbered(range(10)))
    receive(tmp_path, kinesis.uri(name))
    kinesis.put(name, numbered(range(10, 20)))
    look = kinesis_receiver.KinesisStream.look

    def later(stream: Any) -> None:
        look(stream)
        stream.now_ms += 25 * 3_600_000

    monkeypatch.setattr(kinesis_receiver.KinesisStream, "look", later)
    with pytest.raises(RecordsLostError, match="keeps records for 24 h"):
        receive(tmp_path, kinesis.uri(name))
    receive(tmp_path, kinesis.uri(name, "&missing=skip"))
    # Kinesalite still has the first records, which are the oldest remaining ones.
    assert len(journaled(tmp_path)) == 30


def test_another_stream_of_the_same_name_is_refused(
    kinesis: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at the start and in a running job: iterators of the old stream might continue in the
    middle of the new one.
    """
    name = kinesis.create("anew")
    receive(tmp_path, kinesis.uri(name))
    begun = threading.Event()

    def reads_nothing(_: kinesis_receiver.KinesisReceiver) -> bool:
        begun.set()
        return True

    # A request while there is no stream would end the run before.
    monkeypatch.setattr(kinesis_receiver.KinesisReceiver, "_is_ahead", reads_nothing)
    with receiver(tmp_path, kinesis.uri(name)) as running:
        assert begun.wait(60)
        kinesis.client.delete_stream(StreamName=name)
        while name in kinesis.client.list_streams()["StreamNames"]:
            time.sleep(0.05)
        with pytest.raises(PlaceMissingError, match="does not exist"):
            receive(tmp_path / "other", kinesis.uri(name))
        # Kinesalite's creation times have a resolution of one second.
        time.sleep(1)
        kinesis.create(name)
        monkeypatch.setattr(kinesis_receiver, "_LOOK_S", 0.0)
        deadline = time.monotonic() + 20
        while running.error is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "deleted and created again" in str(running.error)
    with pytest.raises(BindingError, match="deleted and created again"):
        receive(tmp_path, kinesis.uri(name))


def test_the_source_conforms(kinesis: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = kinesis.create("kit-source")
    note_conformance(
        check_source(
            SourceUnderTest(
                "Kinesis",
                "each record once",
                journaling(tmp_path / "journal", kinesis.uri(name)),
                lambda records: kinesis.put(name, [("a", record) for record in records]),
                at_port=in_haste(
                    monkeypatch,
                    lambda port: journaling(
                        tmp_path / "slow",
                        f"kinesis://{name}?endpoint=http://127.0.0.1:{port}&region=eu-central-1",
                    )(),
                    ANSWERS_SOON,
                ),
                without={"credentials": ANY_KEY},
            )
        )
    )


def test_the_kinesis_sink_conforms(kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    name = kinesis.create("kit-sink", 2)
    query = "&origin=true&partition_key={value}"

    def stored() -> list[StoredRecord]:
        found = [json.loads(data) for _, data in kinesis.records(name)]
        return [StoredRecord(one["id"], one["value"], mark=one["penstock_origin"]) for one in found]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "Kinesis",
                "at least once with ids",
                opening(kinesis.uri(name, query)),
                stored,
                bad="x" * 300,
                at_port=in_haste(
                    monkeypatch,
                    lambda port: opening(
                        f"kinesis://{name}?endpoint=http://127.0.0.1:{port}&region=eu-central-1{query}"
                    )(),
                    ANSWERS_SOON,
                ),
                without={"credentials": ANY_KEY},
            )
        )
    )


def test_the_dynamodb_sink_conforms(dynamo: DynamoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    table = dynamo.create("kit", id="N")

    def stored() -> list[StoredRecord]:
        return [StoredRecord(int(one["id"]["N"]), one["value"]["S"]) for one in dynamo.items(table)]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "DynamoDB",
                "idempotent by key",
                opening(dynamo.uri(table)),
                stored,
                bad="x" * (410 << 10),
                at_port=in_haste(
                    monkeypatch,
                    lambda port: opening(
                        f"dynamodb://{table}?endpoint=http://127.0.0.1:{port}&region=eu-central-1"
                    )(),
                    ANSWERS_SOON,
                ),
                without={"credentials": ANY_KEY},
            )
        )
    )


def write(
    sink: Sink, batch: int, kind: Any, *rows: tuple[Any, ...], attempt: int = 0, keys: pa.Array | None = None
) -> list[Rejection]:
    """Write a micro-batch of one sink partition."""
    task = sink.task(TaskContext(batch, 0, attempt, "line"), kind)
    assert isinstance(task, RejectingTask)
    task.come_from(RecordOrigin("", "in", "0", pa.array(range(len(rows))), is_source=True))
    named = [dict(zip(kind.field_names, row, strict=True)) for row in rows]
    task.write(pa.RecordBatch.from_pylist(named, kind.schema), keys)
    task.finish()
    return task.rejections()


def test_partition_keys_and_what_kinesis_does_not_take(kinesis: KinesisServer, tmp_path: Path) -> None:
    """Without a template the step's key is used; too large records and too long keys are rejected, the others
    written.
    """
    name = kinesis.create("put")
    sink = opening(kinesis.uri(name), READING)()
    sink.prepare("line", str(tmp_path))
    large = "x" * (1 << 20)
    keys = pa.array([b"a", None, b"\xff", b"b" * 300, b"c"], pa.binary())
    rejected = write(sink, 0, READING, *[(n, None, large if n == 4 else "r") for n in range(5)], keys=keys)
    assert [one.row for one in rejected] == [3, 4]
    assert "300 characters" in rejected[0].reason
    assert "1048576" in rejected[1].reason
    assert [key for key, _ in kinesis.records(name)] == ["a", "0-1", "ff"]
    assert (
        check_binding("alerts", parse_binding("alerts", kinesis.uri(name), "sink"), is_source=False).status
        == "ok"
    )


def test_a_record_that_kinesis_refuses_is_rejected_alone(kinesis: KinesisServer, tmp_path: Path) -> None:
    """Kinesis rejects the whole request that contains it; a null has no bytes."""
    name = kinesis.create("refused")
    sink = opening(kinesis.uri(name, "&partition_key={room}"), READING)()
    sink.prepare("line", str(tmp_path))
    # These 200 characters count as 400 in a server written in JavaScript or Java.
    rooms = [*"abc", "\N{GRINNING FACE}" * 200, *"def"]
    rejected = write(sink, 0, READING, *((number, None, room) for number, room in enumerate(rooms)))
    assert [one.row for one in rejected] == [3]
    assert "Member must have length less than or equal to 256" in rejected[0].reason
    assert sorted(key for key, _ in kinesis.records(name)) == list("abcdef")
    note = record_type("note BINARY")
    plain = opening(kinesis.uri(name, "&format=bytes"), note)()
    (only,) = write(plain, 1, note, (b"g",), (None,))
    assert (only.row, only.reason) == (1, "Its value is null, and a record of Kinesis has bytes.")
    assert kinesis.records(name)[-1][1] == b"g"


def test_records_of_a_key_stay_in_order(kinesis: KinesisServer, tmp_path: Path) -> None:
    name = kinesis.create("ordered", 3)
    sink = opening(kinesis.uri(name, "&partition_key={room}"), READING)()
    sink.prepare("line", str(tmp_path))
    write(sink, 0, READING, *[(number, None, str(number % 40)) for number in range(400)])
    found = [json.loads(data)["sensor"] for _, data in kinesis.records(name)]
    assert sorted(found) == list(range(400))
    for room in range(40):
        assert [number for number in found if number % 40 == room] == list(range(room, 400, 40))


def test_items_have_the_last_values_whoever_writes_late(dynamo: DynamoServer, tmp_path: Path) -> None:
    """Types are preserved; an earlier run and an earlier attempt can no longer change anything."""
    table = dynamo.create("latest", sensor="N")
    old = opening(dynamo.uri(table), READING)()
    old.prepare("line", str(tmp_path))
    assert write(old, 0, READING, (1, 20.5, "a"), (1, 21.0, None), (2, None, "b")) == []
    new = opening(dynamo.uri(table), READING)()
    new.prepare("line", str(tmp_path))
    assert write(new, 0, READING, (1, 22.0, "c"), attempt=1) == []
    expected = {"sensor": {"N": "1"}, "celsius": {"N": "22"}, "room": {"S": "c"}}
    for late, attempt in ((old, 9), (new, 0)):
        with pytest.raises(ExternalSystemError, match="a later run of the job, or a later attempt"):
            write(late, 0, READING, (1, 0.0, "late"), attempt=attempt)
        items = {int(one["sensor"]["N"]): one for one in dynamo.items(table)}
        assert {name: items[1][name] for name in expected} == expected
        assert set(items[2]) == {"sensor", "room", "penstock_mark"}
    (rejected,) = write(new, 1, READING, (3, float("nan"), "x"))
    assert "refuses its item" in rejected.reason
    assert (
        check_binding("alerts", parse_binding("alerts", dynamo.uri(table), "sink"), is_source=False).status
        == "ok"
    )


def test_a_record_that_is_refused_leaves_the_one_before_it(
    dynamo: DynamoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds within a block, too. An item too large for a request is rejected locally: the emulator
    accepts it.
    """
    table = dynamo.create("refused", sensor="N")
    sink = opening(dynamo.uri(table), READING)()
    sink.prepare("line", str(tmp_path))
    nan, huge = float("nan"), "x" * (17 << 20)
    rows = [
        (1, 1.0, "a"),
        (1, 2.0, "b"),
        (2, 1.0, "a"),
        (1, nan, "c"),
        (2, 1.0, huge),
        (1, nan, "d"),
        (3, 1.0, "e"),
    ]
    rejected = write(sink, 0, READING, *rows)
    assert [one.row for one in rejected] == [3, 4, 5]
    assert rejected[1].reason.endswith("bytes, and an item may have 409600.")
    found = {int(one["sensor"]["N"]): one["room"]["S"] for one in dynamo.items(table)}
    assert found == {1: "b", 2: "a", 3: "e"}
    dynamo.client.delete_table(TableName=table)
    while table in dynamo.client.list_tables()["TableNames"]:
        time.sleep(0.02)
    dynamo.create(table, device="S")
    with pytest.raises(
        ExternalSystemError, match="was made anew since the start of this run, with the key device"
    ):
        write(sink, 1, READING, (1, 1.0, "a"))
    monkeypatch.setattr(dynamo_sink, "_KEY_CHECKED_EVERY_S", 0.0)
    with pytest.raises(ExternalSystemError, match="was made anew since the start of this run"):
        sink.commit(1, [b""])


def test_a_server_that_stands_still_is_not_asked_for_each_item(
    dynamo: DynamoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the request for each item would wait for its own timeout."""
    table = dynamo.create("still", sensor="N")
    monkeypatch.setattr(dynamo_sink, "_PATIENCE_S", 0.5)
    sink = opening(dynamo.uri(table), READING)()
    sink.prepare("line", str(tmp_path))
    dynamo.stand_still(True)
    # The client that is kept for the server has the full timeout.
    monkeypatch.setattr(service_clients, "_kept", {})
    monkeypatch.setattr(*ANSWERS_SOON)
    try:
        begun_s = time.monotonic()
        with pytest.raises(ExternalSystemError, match="takes no items"):
            write(sink, 0, READING, *((number, 1.0, "a") for number in range(200)))
        assert time.monotonic() < begun_s + 10
    finally:
        dynamo.stand_still(False)
    assert write(sink, 0, READING, (1, 1.0, "a"), attempt=1) == []


@pytest.mark.parametrize("deletions", ["remove", "mark"])
def test_deletions(dynamo: DynamoServer, tmp_path: Path, deletions: str) -> None:
    """A deletion that leaves a tombstone withstands late writes of an older run."""
    table = dynamo.create(f"changes-{deletions}", sensor="N")
    binding = parse_binding("alerts", dynamo.uri(table, f"&deletions={deletions}"), "sink")
    sinks = [open_sink(binding, CHANGE, None, upsert_key=["sensor"]) for _ in range(2)]
    for sink in sinks:
        sink.prepare("line", str(tmp_path))
    old, new = sinks
    assert write(new, 0, CHANGE, ("+I", 1, 1.0), ("+I", 2, 1.0), ("-D", 2, 1.0)) == []
    assert write(new, 1, CHANGE, ("-D", 1, 1.0)) == []
    if deletions == "remove":
        assert dynamo.items(table) == []
        return
    with pytest.raises(ExternalSystemError, match="a later run"):
        write(old, 2, CHANGE, ("+U", 1, 2.0))
    assert [one["penstock_deleted"] for one in dynamo.items(table)] == [{"BOOL": True}] * 2


def test_a_key_or_an_endpoint_that_does_not_fit_is_named(
    dynamo: DynamoServer, kinesis: KinesisServer, tmp_path: Path
) -> None:
    table = dynamo.create("other-key", device="S")
    with pytest.raises(BindingError, match=r"has device \(of type S\), which the records lack"):
        opening(dynamo.uri(table), READING)().prepare("line", str(tmp_path))
    with pytest.raises(PlaceMissingError, match="does not exist"):
        opening(dynamo.uri("nowhere"), READING)().prepare("line", str(tmp_path))
    for endpoint, reason in (
        (dynamo.endpoint.replace("http", "https"), "does not answer with TLS"),
        (kinesis.endpoint, "is another service"),
    ):
        uri = f"dynamodb://{table}?region=eu-central-1&endpoint={endpoint}"
        with pytest.raises(BindingError, match=reason):
            opening(uri, READING)().prepare("line", str(tmp_path))
