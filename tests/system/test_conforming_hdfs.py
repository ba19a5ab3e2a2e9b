"""HDFS files as a sink and as a source pass the conformance kit on a real NameNode and DataNode."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sinks import opening
from conforming_sources import objects_at
from hdfs_native import Client
from hdfs_server import HdfsServer

from penstock.objects.batch_manifests import committed_objects
from penstock.sources.object_log import ObjectLog
from penstock.testing.connectors import SinkUnderTest, SourceUnderTest, StoredRecord, check_sink, check_source

pytestmark = WHEN_RECORDING

NO_LOGIN = "without Kerberos, HDFS believes its clients who they are"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


def test_the_sink(hdfs: HdfsServer) -> None:
    """Output files are named by manifests."""
    client = hdfs.client()

    def uri(port: int) -> str:
        return f"hdfs://127.0.0.1:{port}/sinks/kit"

    def stored() -> list[StoredRecord]:
        files = [
            client.read(name.removeprefix(hdfs.url)).read() for name in committed_objects(uri(hdfs.port))
        ]
        return [StoredRecord(**json.loads(line)) for file in files for line in file.splitlines()]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "HDFS",
                "exactly once",
                opening(f"{uri(hdfs.port)}?format=jsonl"),
                stored,
                at_port=lambda port: opening(f"{uri(port)}?format=jsonl")(),
                without={"bad record": "the destination takes every record", "credentials": NO_LOGIN},
            )
        )
    )


def test_the_source(hdfs: HdfsServer, tmp_path: Path) -> None:
    """Input files have lines, and are renamed into the folder."""
    client = hdfs.client()
    numbers = itertools.count()

    def reading(port: int, name: str = "readings") -> Callable[[], AbstractContextManager[ObjectLog]]:
        return objects_at(f"hdfs://127.0.0.1:{port}/sources/kit?format=jsonl", tmp_path / f"{name}.files")

    def put(records: Sequence[bytes]) -> None:
        _write(client, f"{next(numbers):05}.jsonl", b"".join(record + b"\n" for record in records))

    note_conformance(
        check_source(
            SourceUnderTest(
                "HDFS",
                "each record once",
                reading(hdfs.port),
                put,
                at_port=lambda port: reading(port, "slow")(),
                without={"credentials": NO_LOGIN},
            )
        )
    )


def _write(client: Client, name: str, content: bytes) -> None:
    client.mkdirs("/sources/kit", create_parent=True)
    with client.create(f"/sources/new-{name}") as file:
        file.write(content)
    client.rename(f"/sources/new-{name}", f"/sources/kit/{name}")
