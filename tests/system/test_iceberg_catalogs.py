"""Iceberg catalogs on real servers: REST, and PostgreSQL with the files in an object store."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from postgres_server import PASSWORD, PostgresServer
from pyiceberg.catalog.rest import RestCatalog
from s3_server import KEY, SECRET, S3Server

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import IcebergBinding
from penstock.errors import ExternalSystemError
from penstock.lakes import lake_log
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.lakes.iceberg_sink import IcebergSink
from penstock.lakes.lake_log import LakeLog
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

READING = record_type("sensor STRING, value DOUBLE")
READY_S = 60.0


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start an S3 server that is also a REST catalog."""
    with S3Server(tmp_path_factory.mktemp("s3"), table_bucket="lake") as started:
        yield started


def staged(sink: IcebergSink, batch: int) -> list[bytes]:
    task = pickle.loads(pickle.dumps(sink)).task(TaskContext(batch, 0, 0, "line"), READING)
    task.write(pa.RecordBatch.from_pylist([{"sensor": f"s{batch}", "value": batch}], READING.schema), None)
    return [task.finish()]


def check_table(uri: str, query: str, folder: Path) -> None:
    """Commit through a successor and a zombie, and read the table as a stream."""
    binding = parse_binding("seen", f"{uri}{query}&partition_by=sensor", "sink")
    assert isinstance(binding, IcebergBinding)
    zombie, successor = IcebergSink(binding, READING), IcebergSink(binding, READING)
    assert zombie.newest("line", "") == -1
    for sink in (zombie, successor):
        sink.prepare("line", "")
    late = [staged(zombie, batch) for batch in range(3)]
    for batch in range(2):
        successor.commit(batch, staged(successor, batch))
        zombie.commit(batch, late[batch])
    zombie.commit(2, late[2])
    successor.commit(2, staged(successor, 2))
    assert successor.newest("line", "") == 2
    assert sorted(open_existing_table(binding).scan().to_arrow().column("value").to_pylist()) == [
        0.0,
        1.0,
        2.0,
    ]
    source = parse_binding("seen", f"{uri}{query}", "data")
    assert isinstance(source, IcebergBinding)
    log = LakeLog(source, folder / "seen.files")
    log.check()
    first = log.latest(0, limited=True)
    successor.commit(3, staged(successor, 3))
    second = log.latest(first, limited=True)
    for start, end, expected in ((0, first, [0.0, 1.0, 2.0]), (first, second, [3.0])):
        chunks = pickle.loads(pickle.dumps(log)).read(log.splits(start, end, 1), READING)
        assert (
            sorted(value for chunk in chunks for value in chunk.batch.column("value").to_pylist()) == expected
        )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_log, "_LOOK_S", {"delta": 0, "iceberg": 0})


def test_a_rest_catalog(s3: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    s3_environment.setenv("LAKE_LOGIN", f"{KEY}:{SECRET}")
    await_catalog(s3)
    query = f"?catalog={s3.catalog}&warehouse=s3://lake"
    check_table("iceberg:plant.seen", f"{query}&credential=env:LAKE_LOGIN", tmp_path)
    s3_environment.setenv("LAKE_LOGIN", f"{KEY}:wrong")
    refused = parse_binding("seen", f"iceberg:plant.seen{query}&credential=env:LAKE_LOGIN", "sink")
    assert isinstance(refused, IcebergBinding)
    with pytest.raises(
        ExternalSystemError, match=r"plant\.seen of the catalog .* cannot be read or written"
    ) as e:
        IcebergSink(refused, READING).prepare("line", "")
    assert "wrong" not in str(e.value)


def await_catalog(s3: S3Server) -> None:
    """The catalog answers a moment later than the object store."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            tokens = {"oauth2-server-uri": f"{s3.catalog}/v1/oauth/tokens", "credential": f"{KEY}:{SECRET}"}
            RestCatalog("ready", uri=s3.catalog, warehouse="s3://lake", **tokens).list_namespaces()
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


def test_a_catalog_in_postgresql_with_files_in_an_object_store(
    postgres: PostgresServer, s3: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keys and the password are given by reference."""
    s3.put("files", "there", b"")
    s3_environment.setenv("PASSWORD", PASSWORD)
    s3_environment.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "secret").write_text(SECRET)
    url = postgres.url("postgres").replace(f":{PASSWORD}@", "@")
    query = (
        f"?catalog={url}&password=env:PASSWORD&warehouse=s3://files/lake"
        f"&access_key_id={KEY}&secret_access_key=file:{tmp_path}/secret"
    )
    check_table("iceberg:plant.seen", query, tmp_path)
