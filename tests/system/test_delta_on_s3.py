"""Delta Lake tables in an object store, on a real S3 server: as sinks, with upserts, and as sources."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sinks import opening
from conforming_sources import table_at
from deltalake import DeltaTable, write_deltalake
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from s3_server import KEY, SECRET, STRANGER, STRANGER_SECRET, S3Server

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, PenstockError
from penstock.jobs.job_sinks import open_sink
from penstock.jobs.settings import RunSettings
from penstock.lakes import lake_log
from penstock.lakes.delta_sink import DeltaSink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sources.base import ReplayableLog
from penstock.testing.connectors import SinkUnderTest, SourceUnderTest, StoredRecord, check_sink, check_source

ROW = record_type("id BIGINT, part STRING")
JOB = """
import penstock as ps

ROW = "id BIGINT, part STRING"


class Same(ps.ProcessFunction):
    def process_record(self, row, ctx):
        yield row


job = ps.Job("copies")
job.data_stream("rows", schema=ROW).key_by("id").process("same", Same(), output=ROW).sink_to("copies")
"""


def options(s3: S3Server) -> dict[str, str]:
    """Return options by which delta-rs reaches the server, without penstock."""
    return {**s3.environment, "AWS_ALLOW_HTTP": "true"}


def rows_of(s3: S3Server, uri: str) -> list[tuple[int, str]]:
    found = DeltaTable(uri, storage_options=options(s3)).to_pyarrow_table().select(["id", "part"])
    return sorted(map(tuple, (row.values() for row in found.to_pylist())))


class Table:
    """A table below its own bucket, with keys by reference."""

    def __init__(self, s3: S3Server, bucket: str, folder: Path, query: str = "") -> None:
        s3.put(bucket, "there", b"")
        (folder / "key").write_text(KEY)
        (folder / "secret").write_text(SECRET)
        self.place = f"s3://{bucket}/lake/table"
        keys = f"access_key_id=file:{folder}/key&secret_access_key=file:{folder}/secret"
        self.uri = f"delta:{self.place}?{keys}&region=us-east-1&endpoint=http://127.0.0.1:{s3.port}{query}"

    def driver(self) -> DeltaSink:
        sink = open_sink(parse_binding("seen", self.uri, "sink"), ROW, None)
        assert isinstance(sink, DeltaSink)
        sink.prepare("line", "")
        return sink


def staged(sink: DeltaSink, batch_id: int, *tasks: list[tuple[int, str]]) -> list[bytes]:
    found = []
    for partition, rows in enumerate(tasks):
        task = pickle.loads(pickle.dumps(sink)).task(TaskContext(batch_id, partition, 0, "line"), ROW)
        batch = [{"id": number, "part": part} for number, part in rows]
        task.write(pa.RecordBatch.from_pylist(batch, ROW.schema), None)
        found.append(task.finish())
    return found


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> S3Server:
    """Yield a server whose keys are not in the environment."""
    for name in s3.environment:
        monkeypatch.delenv(name, raising=False)
    return s3


@pytest.mark.parametrize("partition_by", ["", "&partition_by=part"])
def test_each_micro_batch_is_one_commit(without_keys: S3Server, tmp_path: Path, partition_by: str) -> None:
    """A repetition by another driver adds none; uncommitted staged files are removed, and no key is shown."""
    table = Table(without_keys, f"rows{len(partition_by)}", tmp_path, partition_by)
    sink = table.driver()
    assert SECRET.encode() not in pickle.dumps(sink)
    first = staged(sink, 0, [(1, "a/%"), (2, "b")], [(3, "")])
    assert rows_of(without_keys, table.place) == []
    sink.commit(0, first)
    expected = [(1, "a/%"), (2, "b"), (3, None if partition_by else "")]
    assert rows_of(without_keys, table.place) == expected
    other = table.driver()
    assert other.newest("line", "") == 0
    second = staged(sink, 1, [(4, "b")])
    other.commit(1, staged(other, 1, [(4, "b")]))
    sink.commit(1, second)
    sink.commit(0, first)
    assert rows_of(without_keys, table.place) == sorted([*expected, (4, "b")])
    task = sink.task(TaskContext(2, 0, 0, "line"), ROW)
    task.write(pa.RecordBatch.from_pylist([{"id": 9, "part": "x"}], ROW.schema), None)
    task.finish()
    task.abort()
    named = DeltaTable(table.place, storage_options=options(without_keys)).file_uris()
    bucket = table.place.split("/")[2]
    found = [name for name in without_keys.tags(bucket, "lake/table") if name.endswith(".parquet")]
    assert len(found) == len(named)


def test_two_drivers_commit_a_micro_batch_once(
    without_keys: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both drivers have checked before either commits: the store creates a version of the log only once."""
    table = Table(without_keys, "drivers", tmp_path)
    one, other = table.driver(), table.driver()
    real = DeltaTable.create_write_transaction

    def disturbed(self: Any, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        other.commit(0, staged(other, 0, [(1, "a")]))
        real(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", disturbed)
    one.commit(0, staged(one, 0, [(1, "a")]))
    assert rows_of(without_keys, table.place) == [(1, "a")]


def test_upserts_replace_rows(without_keys: S3Server, tmp_path: Path) -> None:
    """It works as in a folder; the tasks' change files are removed."""
    table = Table(without_keys, "upserts", tmp_path, "&upsert_by=id")
    sink = table.driver()
    sink.commit(0, staged(sink, 0, [(1, "a"), (2, "b")], [(3, "c")]))
    changes = staged(sink, 1, [(2, "d"), (4, "e"), (2, "f")])
    sink.commit(1, changes)
    sink.commit(1, changes)
    assert rows_of(without_keys, table.place) == [(1, "a"), (2, "f"), (3, "c"), (4, "e")]
    assert not [name for name in without_keys.tags("upserts", "lake") if "_penstock_changes" in name]


def test_a_table_in_a_store_is_sink_and_source_of_jobs(
    without_keys: S3Server, tmp_path: Path, spark: SparkSession
) -> None:
    """In both modes each row appears once, and a source reads on when another writer appends."""
    table = Table(without_keys, "jobs", tmp_path)
    (tmp_path / "copying_rows_job.py").write_text(JOB)
    (tmp_path / "in").mkdir()
    expected: list[tuple[int, str]] = []
    for number, settings in enumerate(({}, {"checkpoint_interval_ms": 1000})):
        rows = [{"id": 1000 * number + n, "part": f"p{n % 3}"} for n in range(300)]
        expected += [(row["id"], row["part"]) for row in rows]  # type: ignore[misc]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given: dict[str, Any] = {**settings, "checkpoint": str(tmp_path / "state"), "bounded": True}
        bindings = {"rows": f"jsonl:{tmp_path}/in", "copies": table.uri}
        with JobInSession(
            spark, tmp_path / "copying_rows_job.py", RunSettings(bindings=bindings, **given)
        ) as job:
            job.wait()
        assert rows_of(without_keys, table.place) == expected
    for _ in range(2):
        given = {"checkpoint": str(tmp_path / "other"), "bounded": True}
        bindings = {"rows": table.uri, "copies": f"jsonl:{tmp_path}/out"}
        with JobInSession(
            spark, tmp_path / "copying_rows_job.py", RunSettings(bindings=bindings, **given)
        ) as job:
            job.wait()
        lines = [
            line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()
        ]
        assert sorted((one["id"], one["part"]) for one in map(json.loads, lines)) == expected
        write_deltalake(
            table.place,
            pa.Table.from_pylist([{"id": 9999, "part": "x"}], ROW.schema),
            mode="append",
            storage_options=options(without_keys),
        )
        expected.append((9999, "x"))
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "secret"]
    assert SECRET.encode() not in b"".join(kept)


def test_what_is_wrong_is_told(without_keys: S3Server, tmp_path: Path) -> None:
    """Covered are foreign keys, a missing bucket, and an invalid place; the message has no key."""
    table = Table(without_keys, "wrong", tmp_path)
    table.driver()
    assert "in version 0" in str(
        check_binding("seen", parse_binding("seen", table.uri, "sink"), is_source=False)
    )
    (tmp_path / "key").write_text(STRANGER)
    (tmp_path / "secret").write_text(STRANGER_SECRET)
    with pytest.raises(PenstockError) as e:
        table.driver()
    assert STRANGER_SECRET not in str(e.value)
    for uri, told in (
        ("delta:s3://bucket", "a table has a prefix of its own"),
        ("delta:/folder?region=x", "a folder has none"),
        ("delta:gs://bucket/table", "is not a local folder"),
        ("delta:s3://bucket/a/../b", "has an empty part, '.' or '..'"),
    ):
        with pytest.raises(BindingError, match=told):
            parse_binding("seen", uri, "sink")
    found = parse_binding("seen", "delta:s3a://bucket/a/b%20c", "sink")
    assert isinstance(found, DeltaBinding)
    assert (found.directory, found.bucket, found.prefix) == ("s3://bucket/a/b c", "bucket", "a/b c")
    assert "AWS_ACCESS_KEY_ID" not in os.environ


@WHEN_RECORDING
def test_delta_on_s3_is_held_to_the_conformance_kit(s3_environment: pytest.MonkeyPatch, s3: S3Server) -> None:
    """The sink writes rows of a Delta Lake table in an object store."""
    s3.put("kit", "there", b"")
    s3_environment.setenv("WRONG", "not-the-secret")
    place = "s3://kit/table"

    def stored() -> list[StoredRecord]:
        if not DeltaTable.is_deltatable(place, options(s3)):
            return []
        found = DeltaTable(place, storage_options=options(s3)).to_pyarrow_table()
        return [StoredRecord(**row) for row in found.to_pylist()]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "Delta Lake on S3",
                "exactly once",
                opening(f"delta:{place}"),
                stored,
                with_wrong_login=opening(f"delta:{place}?access_key_id={KEY}&secret_access_key=env:WRONG"),
                secret="not-the-secret",
                at_port=lambda port: opening(f"delta:{place}?endpoint=http://127.0.0.1:{port}")(),
                limit_s=90.0,
                without={"bad record": "the destination takes every record"},
            )
        )
    )


@WHEN_RECORDING
def test_sources_of_delta_on_s3_are_held_to_the_conformance_kit(
    tmp_path: Path, s3_environment: pytest.MonkeyPatch, s3: S3Server
) -> None:
    """Another writer appends rows to a table in an object store, one commit for all records of a check."""
    s3_environment.setitem(lake_log._LOOK_S, "delta", 0)
    s3_environment.setenv("WRONG", "not-the-secret")
    s3.put("kit-sources", "there", b"")
    place, kind = "s3://kit-sources/table", record_type("id BIGINT")
    write_deltalake(place, kind.schema.empty_table(), storage_options=options(s3))

    def put(records: Sequence[bytes]) -> None:
        rows = pa.Table.from_pylist([json.loads(record) for record in records], kind.schema)
        write_deltalake(place, rows, mode="append", storage_options=options(s3))

    def opened_at(name: str, query: str = "") -> Callable[[], AbstractContextManager[ReplayableLog[Any]]]:
        return table_at(f"delta:{place}{query}", tmp_path / f"{name}.files")

    note_conformance(
        check_source(
            SourceUnderTest(
                "Delta Lake on S3",
                "each record once",
                opened_at("right"),
                put,
                with_wrong_login=opened_at("wrong", f"?access_key_id={KEY}&secret_access_key=env:WRONG"),
                secret="not-the-secret",
                at_port=lambda port: opened_at("slow", f"?endpoint=http://127.0.0.1:{port}")(),
                limit_s=90.0,
                without={"bad record": "the columns of a table have types"},
            )
        )
    )
