"""Object sinks on a real S3 server: whole micro-batches, exactly once, whatever tasks and drivers do."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from conformance_page import note_conformance
from obstore.store import S3Store
from pyarrow.fs import S3FileSystem
from s3_server import KEY, SECRET, STRANGER, STRANGER_SECRET, S3Server
from silent_server import in_haste

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ObjectsBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, PlaceMissingError
from penstock.objects.batch_manifests import committed_objects
from penstock.objects.object_stores import Patience
from penstock.records.schemas import record_type
from penstock.sinks import object_sink
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.object_sink import ObjectSink
from penstock.testing.connectors import SinkUnderTest, StoredRecord, check_sink

READING = record_type("sensor BIGINT NOT NULL, room STRING")


@pytest.fixture
def place(s3_environment: pytest.MonkeyPatch, s3: S3Server, request: pytest.FixtureRequest) -> str:
    """Return the URI of a separate prefix in an existing bucket."""
    s3.put("sinks", "there", b"")
    return f"s3://sinks/{request.node.name}"


def binding(uri: str) -> ObjectsBinding:
    found = parse_binding("seen", uri, "sink")
    assert isinstance(found, ObjectsBinding)
    return found


def prepared(place: str, folder: Path, file_format: str = "parquet", lineage: str = "line") -> ObjectSink:
    sink = ObjectSink(binding(f"{place}?format={file_format}"))
    sink.prepare(lineage, str(folder))
    return sink


def readings(*sensors: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"sensor": n, "room": f"r{n}"} for n in sensors], READING.schema)


def begin(sink: ObjectSink, batch: int, partition: int = 0, attempt: int = 0) -> SinkTask:
    return sink.task(TaskContext(batch, partition, attempt, "line"), READING)


def part(sink: ObjectSink, batch: int, partition: int, *blocks: pa.RecordBatch) -> bytes:
    task = begin(sink, batch, partition)
    for block in blocks:
        task.write(block, None)
    return task.finish()


def store() -> S3Store:
    return S3Store("sinks", client_options={"allow_http": True})


def content(uri: str) -> bytes:
    return bytes(obstore.get(store(), uri.removeprefix("s3://sinks/")).bytes())


def table(uri: str) -> pa.Table:
    read: dict[str, Any] = {"parquet": pq.read_table, "csv": pa.csv.read_csv, "jsonl": pa.json.read_json}
    return read[uri.rpartition(".")[2]](io.BytesIO(content(uri)))


def sensors(uris: Sequence[str]) -> list[int]:
    return [n for uri in uris for n in table(uri)["sensor"].to_pylist()]


def all_names(place: str) -> list[str]:
    prefix = place.removeprefix("s3://sinks/")
    return sorted(one["path"] for block in obstore.list(store(), prefix) for one in block)


@pytest.mark.parametrize("file_format", ["parquet", "jsonl", "csv"])
def test_a_micro_batch_is_there_when_it_has_its_manifest(
    place: str, tmp_path: Path, file_format: str
) -> None:
    """Its objects are read in the order of the sink partitions; empty ones are not written."""
    place = place.replace("[", "-").replace("]", "")
    sink = prepared(place, tmp_path, file_format)
    messages = [
        part(sink, 0, 0, readings(1, 2), readings(3)),
        part(sink, 0, 1),
        part(sink, 0, 2, readings(4)),
    ]
    assert committed_objects(place) == []
    sink.commit(0, messages)
    found = committed_objects(place)
    assert [uri.rpartition("/")[2][:16] for uri in found] == ["0000000000-00000", "0000000000-00002"]
    assert sensors(found) == [1, 2, 3, 4]
    assert table(found[0])["room"].to_pylist() == ["r1", "r2", "r3"]
    sink.commit(1, [b"", b""])
    sink.commit(12, [part(sink, 12, 0, readings(5))])
    assert sensors(committed_objects(place)) == [1, 2, 3, 4, 5]


def test_a_repeated_micro_batch_has_the_same_objects(place: str, tmp_path: Path) -> None:
    """This holds for any division into blocks, after a crash before or after the commit, and without the note."""
    sink = prepared(place, tmp_path)
    assert part(sink, 0, 0, readings(1, 2), readings(3)) == part(sink, 0, 0, readings(1), readings(2, 3))
    message = part(sink, 0, 0, readings(1, 2, 3))
    sink.commit(0, [message])
    names = all_names(place)
    sink.commit(0, [message])
    for lost in (False, True):
        if lost:
            (tmp_path / "object-sink-seen.json").unlink()
        again = prepared(place, tmp_path)
        assert again.newest("line", str(tmp_path)) == 0
        again.commit(0, [part(again, 0, 0, readings(1, 2, 3))])
    assert all_names(place) == names
    assert len(names) == 3
    assert again.newest("another", str(tmp_path)) == -1


def test_a_driver_that_was_replaced_commits_nothing(place: str, tmp_path: Path) -> None:
    """It finds the other driver's manifest, and its own records for the micro-batch must be the same."""
    (tmp_path / "new").mkdir()
    zombie, driver = prepared(place, tmp_path), prepared(place, tmp_path / "new")
    late = [part(zombie, 0, 0, readings(1)), part(zombie, 0, 1, readings(2))]
    driver.commit(0, [part(driver, 0, 0, readings(1, 2))])
    zombie.commit(0, late)
    assert sensors(committed_objects(place)) == [1, 2]
    driver.commit(1, [part(driver, 1, 0, readings(3))])
    with pytest.raises(CheckpointError, match="with 1 records, and this run has 2 for it"):
        zombie.commit(1, [part(zombie, 1, 0, readings(3, 4))])
    assert sensors(committed_objects(place)) == [1, 2, 3]


def test_a_checkpoint_that_went_back_is_noticed(place: str, tmp_path: Path) -> None:
    """The store is only asked for manifests after the newest one in the checkpoint."""
    sink = prepared(place, tmp_path)
    note = tmp_path / "object-sink-seen.json"
    for batch in range(3):
        sink.commit(batch, [part(sink, batch, 0, readings(batch))])
        if batch == 0:
            older = note.read_bytes()
    assert sink.newest("line", str(tmp_path)) == 2
    note.write_bytes(older)
    assert ObjectSink(binding(f"{place}?format=csv")).newest("line", str(tmp_path)) == 2
    note.write_bytes(b"{")
    with pytest.raises(CheckpointError, match="is damaged"):
        sink.newest("line", str(tmp_path))


def test_a_failed_task_leaves_nothing(place: str, tmp_path: Path) -> None:
    """An object that a task has sent counts only once a manifest names it."""
    sink = prepared(place, tmp_path)
    before = all_names(place)
    task = begin(sink, 0)
    task.write(readings(1), None)
    task.abort()
    assert all_names(place) == before
    part(sink, 0, 0, readings(1))
    assert committed_objects(place) == []


def test_large_objects_arrive_whole(place: str, tmp_path: Path) -> None:
    """They are sent in several requests; a Parquet object has one row group."""
    sink = prepared(place, tmp_path)
    blocks = [
        pa.RecordBatch.from_arrays(
            [pa.array(range(n, n + 5000)), pa.nulls(5000, pa.string())], schema=READING.schema
        )
        for n in range(0, 200_000, 5000)
    ]
    sink.commit(0, [part(sink, 0, 0, *blocks)])
    (found,) = committed_objects(place)
    assert part(sink, 0, 0, pa.concat_batches(blocks)) == part(sink, 0, 0, *blocks)
    assert pq.ParquetFile(io.BytesIO(content(found))).num_row_groups == 1
    assert sensors([found]) == list(range(200_000))
    noise = pa.RecordBatch.from_pylist(
        [{"sensor": n, "room": os.urandom(400_000).hex()} for n in range(15)], READING.schema
    )
    lines = prepared(place, tmp_path, "jsonl")
    lines.commit(1, [part(lines, 1, 0, noise)])
    assert table(committed_objects(place)[1])["room"].to_pylist() == noise["room"].to_pylist()


def test_pyarrow_reads_what_was_committed(place: str, tmp_path: Path, s3: S3Server) -> None:
    """The code is that of the page on object stores."""
    sink = prepared(place, tmp_path)
    sink.commit(0, [part(sink, 0, 0, readings(1, 2)), part(sink, 0, 1, readings(3))])
    part(sink, 1, 0, readings(4))
    names = [uri.removeprefix("s3://") for uri in ps.committed_objects(place)]
    system = S3FileSystem(endpoint_override=f"127.0.0.1:{s3.port}", scheme="http")
    assert ds.dataset(names, format="parquet", filesystem=system).to_table()["sensor"].to_pylist() == [
        1,
        2,
        3,
    ]


@contextmanager
def away(server: S3Server) -> Iterator[None]:
    """Take the server down, and restart it a second later."""
    server.kill()
    starting = threading.Timer(1, server.start)
    starting.start()
    try:
        yield
    finally:
        starting.join()


def test_a_server_that_is_away_is_waited_for(place: str, tmp_path: Path, s3: S3Server) -> None:
    """Both tasks and the commit wait."""
    sink = prepared(place, tmp_path)
    task = begin(sink, 0)
    task.write(readings(1), None)
    with away(s3):
        message = task.finish()
    with away(s3):
        sink.commit(0, [message])
    assert sensors(committed_objects(place)) == [1]


def test_what_is_wrong_is_told_at_the_start(
    place: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket, missing rights, a wrong endpoint, and mismatched keys are reported; by doctor as well."""
    fine = binding(f"{place}?format=csv")
    assert (
        check_binding("seen", fine, is_source=False).found == "the bucket sinks answers; nothing was written"
    )
    missing = binding("s3://nowhere/x?format=csv")
    with pytest.raises(PlaceMissingError, match=r"the bucket 'nowhere' does not exist\. Create it"):
        ObjectSink(missing).newest("line", str(tmp_path))
    assert check_binding("seen", missing, is_source=False).remedy
    monkeypatch.setenv("STRANGER_SECRET", STRANGER_SECRET)
    keys = f"access_key_id={STRANGER}&secret_access_key=env:STRANGER_SECRET"
    with pytest.raises(BindingError, match=r"access is denied \(AccessDenied\)") as caught:
        prepared(place, tmp_path, f"csv&{keys}")
    assert STRANGER_SECRET not in str(caught.value)
    with pytest.raises(ExternalSystemError, match="does not answer: connection refused"):
        ObjectSink(binding(f"{place}?format=csv&endpoint=http://127.0.0.1:1")).newest("line", str(tmp_path))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of others")
    with pytest.raises(BindingError, match="give the token of the keys: session_token=env:NAME"):
        prepared(place, tmp_path, f"csv&{keys}")


def test_the_uri_leads_to_the_store(
    place: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint, region and keys in the URI override those of the environment."""
    for name, value in {"ID": "wrong", "SECRET": SECRET}.items():
        monkeypatch.setenv(f"PLANT_{name}", value)
    (tmp_path / "id").write_text(f"{KEY}\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    sink = prepared(
        place,
        tmp_path,
        f"csv&endpoint=http://127.0.0.1:{s3.port}&region=us-east-1&access_key_id=file:{tmp_path}/id"
        "&secret_access_key=env:PLANT_SECRET",
    )
    sink.commit(0, [part(sink, 0, 0, readings(1))])
    assert sink.newest("line", str(tmp_path)) == 0
    # A file may have another key while the job runs.
    more = part(sink, 1, 0, readings(2))
    (tmp_path / "id").write_text("wrong\n")
    with pytest.raises(BindingError, match="access is denied"):
        sink.commit(1, [more])
    (tmp_path / "id").write_text(f"{KEY}\n")
    sink.commit(1, [more])
    assert sink.newest("line", str(tmp_path)) == 1


def test_the_sink_is_held_to_the_conformance_kit(place: str, s3_environment: pytest.MonkeyPatch) -> None:
    """Output objects are named by manifests. Credentials or an endpoint may be in the URI of the sink."""
    hasty = Patience(connect_ms=1000, read_ms=1000, request_ms=2000, retries=0, retry_ms=1000)
    s3_environment.setenv("WRONG", "not-the-secret")

    def opening(more: str = "") -> Callable[[], ObjectSink]:
        found = binding(f"{place}?format=jsonl{more}")
        return lambda: ObjectSink(found)

    def stored() -> list[StoredRecord]:
        rows = [row for name in committed_objects(place) for row in table(name).to_pylist()]
        return [StoredRecord(**row) for row in rows]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "object stores",
                "exactly once",
                opening(),
                stored,
                with_wrong_login=opening(f"&access_key_id={KEY}&secret_access_key=env:WRONG"),
                secret="not-the-secret",
                at_port=in_haste(
                    s3_environment,
                    lambda port: opening(f"&endpoint=http://127.0.0.1:{port}")(),
                    (object_sink, "IN_HASTE", hasty),
                ),
                without={"bad record": "the destination takes every record"},
            )
        )
    )
