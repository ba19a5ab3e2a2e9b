"""Object stores as sources, on a real S3 server: each object once, the same in a replay, with short listings."""

from __future__ import annotations

import gzip
import io
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.object_source import measure_objects
from conformance_page import note_conformance
from conforming_sources import objects_at
from file_feed import COUNTING_JOB, SENSORS
from job_in_session import JobInSession
from obstore.store import S3Store
from pyspark.sql import SparkSession
from s3_server import KEY, SECRET, S3Server
from silent_server import in_haste

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FileFormat, ObjectsBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.jobs.settings import RunSettings
from penstock.objects.object_folder import ObjectFolder
from penstock.objects.object_stores import Patience
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import TaskContext
from penstock.sinks.object_sink import ObjectSink, open_folder
from penstock.sources import object_log
from penstock.sources.file_source import Keeping
from penstock.sources.object_log import ObjectLog
from penstock.testing.connectors import SourceUnderTest, check_source

READING = record_type("sensor BIGINT NOT NULL, room STRING")


class Prefix:
    """A prefix of its own."""

    def __init__(self, s3: S3Server, name: str, folder: Path) -> None:
        self._s3 = s3
        self._name = name
        self._folder = folder

    @property
    def uri(self) -> str:
        return f"s3://sources/{self._name}"

    def put(self, name: str, content: bytes | str) -> None:
        self._s3.put(
            "sources", f"{self._name}/{name}", content.encode() if isinstance(content, str) else content
        )

    def delete(self, name: str) -> None:
        endpoint = self._s3.environment["AWS_ENDPOINT_URL"]
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        store = S3Store("sources", endpoint=endpoint, client_options={"allow_http": True}, **keys)  # type: ignore[arg-type]
        obstore.delete(store, f"{self._name}/{name}")

    def log(self, query: str = "format=jsonl", retained: int = 100) -> ObjectLog:
        binding = parse_binding("readings", f"{self.uri}?{query}", "data")
        assert isinstance(binding, ObjectsBinding)
        log = ObjectLog(binding, open_folder, self._folder / "readings.files", Keeping(retained))
        log.check()
        return log


@pytest.fixture
def place(
    s3_environment: pytest.MonkeyPatch, s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path
) -> Prefix:
    s3_environment.setattr(object_log, "_LOOK_S", 0)
    s3_environment.setattr(object_log, "_LISTING_SHARE", 1e9)
    s3.put("sources", "there", b"")
    return Prefix(s3, request.node.name.replace("[", "-").rstrip("]"), tmp_path)


def lines(*sensors: int) -> str:
    return "".join(f'{{"sensor": {n}, "room": "r{n}"}}\n' for n in sensors)


def found(log: ObjectLog, start: int, end: int, kind: RecordType = READING) -> Iterator[int]:
    """Return the numbers of sensors that workers read in order, with a log from the driver."""
    worker = pickle.loads(pickle.dumps(log))
    for chunk in worker.read(log.splits(start, end, 4), kind):
        if chunk.batch is not None:
            yield from chunk.batch.column("sensor").to_pylist()
        else:
            assert chunk.raw is not None
            yield from (int(raw.split(b":")[1].split(b",")[0]) for raw in chunk.raw.to_pylist())


def test_objects_are_read_once_in_the_order_in_which_they_are_found(place: Prefix) -> None:
    place.put("day=1/b.jsonl", lines(2))
    place.put("a.jsonl.gz", gzip.compress(lines(1).encode()))
    for hidden in ("_tmp/x.jsonl", ".x.jsonl", "x.jsonl.tmp"):
        place.put(hidden, lines(99))
    log = place.log()
    first = log.latest(0, limited=True)
    assert list(found(log, 0, first)) == [1, 2]
    place.put("a0.jsonl", lines(3, 4))
    again = place.log()
    second = again.latest(first, limited=True)
    assert list(found(again, first, second)) == [3, 4]
    assert again.latest(second, limited=True) == second
    assert list(found(again, 0, first)) == [1, 2]
    assert again.lag(first) == {"files": 1, "bytes": len(lines(3, 4))}


def test_tables_are_read_too(place: Prefix) -> None:
    content = io.BytesIO()
    pq.write_table(pa.table({"sensor": [1, 2], "room": ["a", "b"]}), content)
    place.put("x.parquet", content.getvalue())
    log = place.log("format=parquet")
    assert list(found(log, 0, log.latest(0, limited=True))) == [1, 2]
    other = Prefix(place._s3, f"{place._name}-csv", place._folder / "csv")
    other.put("x.csv.gz", gzip.compress(b"sensor;room\n3;c\n"))
    log = other.log("format=csv&delimiter=%3B")
    assert list(found(log, 0, log.latest(0, limited=True))) == [3]


def test_by_growing_names_only_what_is_behind_the_last_is_listed(
    place: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full listing, at intervals, finds objects that appeared late under an earlier name."""
    asked: list[str] = []
    objects = ObjectFolder.objects

    def noted(self: ObjectFolder, after: str = "") -> object:
        asked.append(after)
        return objects(self, after)

    monkeypatch.setattr(ObjectFolder, "objects", noted)
    place.put("2026-05-01", lines(1))
    log = place.log("format=jsonl&names=growing")
    position = log.latest(0, limited=True)
    place.put("2026-05-02", lines(2))
    place.put("2026-04-30", lines(3))
    end = log.latest(position, limited=True)
    assert list(found(log, position, end)) == [2]
    assert asked == ["", "2026-05-01"]
    monkeypatch.setattr(log, "_next_full_s", 0.0)
    last = log.latest(end, limited=True)
    assert list(found(log, end, last)) == [3]
    assert asked[-1] == ""


def test_what_a_sink_has_committed_is_read_by_its_manifests(place: Prefix, tmp_path: Path) -> None:
    """This holds also after the list was compacted; an object that no manifest names is ignored."""
    written = parse_binding("seen", f"{place.uri}?format=jsonl", "sink")
    assert isinstance(written, ObjectsBinding)
    sink = ObjectSink(written)
    sink.prepare("line", str(tmp_path))

    def stage(batch: int) -> bytes:
        task = sink.task(TaskContext(batch, 0, 0, "line"), READING)
        task.write(pa.RecordBatch.from_pylist([{"sensor": batch, "room": "r"}], READING.schema), None)
        return task.finish()

    for batch in range(3):
        sink.commit(batch, [stage(batch)])
    stage(3)
    with pytest.raises(BindingError, match="Add names=manifests to the URI"):
        place.log()
    query = "format=jsonl&names=manifests&max_files_per_batch=2"
    log = place.log(query)
    first = log.latest(0, limited=True)
    assert list(found(log, 0, first)) == [0, 1]
    second = log.latest(first, limited=True)
    assert list(found(log, first, second)) == [2]
    log._compact(log._files(), second)
    assert len(log._files().files) == 0
    sink.commit(3, [stage(3)])
    for again in (place.log(query), log):
        end = again.latest(second, limited=True)
        assert list(found(again, second, end)) == [3]
    assert (tmp_path / "readings.files").stat().st_size < 500


def test_an_object_that_disappears_ends_the_run_or_becomes_a_dead_letter(place: Prefix) -> None:
    place.put("a", lines(1))
    place.put("b", lines(2))
    log = place.log()
    end = log.latest(0, limited=True)
    place.delete("a")
    with pytest.raises(
        ExternalSystemError, match=r"the object a of s3://sources/.* disappeared before it was read"
    ):
        list(found(log, 0, end))
    log = place.log("format=jsonl&missing=skip")
    chunks = list(log.read(log.splits(0, end, 1), READING))
    assert [bad.reason for chunk in chunks for bad in chunk.bad] == [
        "The object a disappeared after it was found, so its records are missing."
    ]
    assert list(found(log, 0, end)) == [2]


def test_damaged_objects_are_named(place: Prefix) -> None:
    place.put("x.parquet", b"no table")
    log = place.log("format=parquet")
    (chunk,) = log.read(log.splits(0, log.latest(0, limited=True), 1), READING)
    assert chunk.bad[0].reason.startswith("x.parquet: The Parquet file cannot be read")


def test_a_bucket_that_is_not_there_is_refused_at_the_start(place: Prefix) -> None:
    missing = parse_binding("readings", "s3://nowhere-at-all/x?format=jsonl", "data")
    assert isinstance(missing, ObjectsBinding)
    with pytest.raises(PlaceMissingError, match="nowhere-at-all"):
        ObjectLog(missing, open_folder, "/dev/null").check()
    assert check_binding("readings", missing, is_source=True).status == "failed"
    there = parse_binding("readings", f"{place.uri}?format=jsonl", "data")
    assert check_binding("readings", there, is_source=True).found == "the bucket sources can be listed"


def test_a_job_reads_objects_once_in_both_modes(s3: S3Server, tmp_path: Path, spark: SparkSession) -> None:
    """Its workers get the keys by reference."""
    (tmp_path / "secret").write_text(SECRET)
    place = Prefix(s3, "of a job", tmp_path)
    endpoint = s3.environment["AWS_ENDPOINT_URL"]
    keys = (
        f"endpoint={endpoint}&region=us-east-1&access_key_id={KEY}&secret_access_key=file:{tmp_path}/secret"
    )
    expected = []
    for interval_ms in (0, 1000):
        number = len(expected) // SENSORS
        place.put(
            f"{number}.jsonl", "".join(f'{{"sensor": {s}, "number": {number}}}\n' for s in range(SENSORS))
        )
        expected += [(sensor, number + 1) for sensor in range(SENSORS)]
        settings = RunSettings(
            bindings={
                "readings": f"s3://sources/of%20a%20job?format=jsonl&{keys}",
                "seen": f"parquet:{tmp_path}/seen",
            },
            checkpoint=str(tmp_path / "checkpoint"),
            parallelism=2,
            bounded=True,
            checkpoint_interval_ms=interval_ms,
        )
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
        table = pq.read_table(tmp_path / "seen")
        seen = zip(table.column("sensor").to_pylist(), table.column("count").to_pylist(), strict=True)
        assert sorted(seen) == sorted(expected)


def test_the_source_is_held_to_the_conformance_kit(
    place: Prefix, tmp_path: Path, s3_environment: pytest.MonkeyPatch
) -> None:
    """Objects have lines. Credentials or an endpoint may be in the URI of the source."""
    hasty = Patience(connect_ms=1000, read_ms=1000, request_ms=2000, retries=0, retry_ms=1000)
    numbers = itertools.count()

    def opening(name: str = "readings", more: str = "") -> Callable[[], AbstractContextManager[ObjectLog]]:
        return objects_at(f"{place.uri}?format=jsonl{more}", tmp_path / f"{name}.files")

    def put(records: Sequence[bytes]) -> None:
        place.put(f"{next(numbers):05}.jsonl", b"".join(record + b"\n" for record in records))

    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-secret")
    note_conformance(
        check_source(
            SourceUnderTest(
                "object stores",
                "each record once",
                opening(),
                put,
                with_wrong_login=opening("wrong", f"&access_key_id={KEY}&secret_access_key=file:{wrong}"),
                secret="not-the-secret",
                at_port=in_haste(
                    s3_environment,
                    lambda port: opening("slow", f"&endpoint=http://127.0.0.1:{port}")(),
                    (object_log, "IN_HASTE", hasty),
                ),
            )
        )
    )


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_the_benchmark_in_small(place: Prefix, file_format: FileFormat) -> None:
    """Both readers read all rows; otherwise `measure_objects` fails."""
    found = measure_objects(place.uri, file_format, 800, 1)
    assert found["rows"] == 800
    assert len(found["rows_per_s"]) == 2
