"""Sinks of stores that start slowly, and Iceberg tables, pass the conformance kit on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from cassandra_server import KEYSPACE, PASSWORD, USER, CassandraServer
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sinks import opening
from lake_tables import iceberg_binding, lake_uri, records_of
from opensearch_server import OpenSearchServer

from penstock.lakes.iceberg_catalog import open_table
from penstock.testing.connectors import SinkUnderTest, StoredRecord, check_sink

pytestmark = WHEN_RECORDING


def test_cassandra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink writes rows of a table with ASCII values."""
    monkeypatch.setenv("RIGHT", PASSWORD)
    monkeypatch.setenv("WRONG", "not-the-password")
    with CassandraServer(tmp_path, logins=True) as server, server.cluster() as cluster:
        session = cluster.connect(KEYSPACE)
        session.default_timeout = 60
        session.execute("CREATE TABLE kit (id bigint PRIMARY KEY, value ascii)")

        def uri(port: int, login: str) -> str:
            return f"cassandra://{USER}@127.0.0.1:{port}/{KEYSPACE}/kit?password=env:{login}"

        note_conformance(
            check_sink(
                SinkUnderTest(
                    "Cassandra",
                    "idempotent by key",
                    opening(uri(server.port, "RIGHT")),
                    lambda: [StoredRecord(*row) for row in session.execute("SELECT id, value FROM kit")],
                    bad="é",
                    with_wrong_login=opening(uri(server.port, "WRONG")),
                    secret="not-the-password",
                    at_port=lambda port: opening(uri(port, "RIGHT"))(),
                )
            )
        )


def test_opensearch(tmp_path: Path) -> None:
    """The sink writes documents of an index with keyword values, which have a maximum length."""
    with OpenSearchServer(tmp_path) as server:
        properties = {"id": {"type": "long"}, "value": {"type": "keyword"}}
        server.ask("PUT", "/kit", {"mappings": {"properties": properties}})

        def uri(port: int) -> str:
            return f"opensearch://127.0.0.1:{port}/kit?id={{id}}"

        def stored() -> list[StoredRecord]:
            return [StoredRecord(one["id"], one["value"]) for one in server.documents("kit").values()]

        note_conformance(
            check_sink(
                SinkUnderTest(
                    "OpenSearch",
                    "idempotent by key",
                    opening(uri(server.port)),
                    stored,
                    bad="x" * 40_000,
                    at_port=lambda port: opening(uri(port))(),
                    limit_s=90.0,
                    without={"credentials": "the module for logins is not among the packages of the tests"},
                )
            )
        )


@pytest.mark.parametrize("keyed", [False, True])
def test_iceberg(tmp_path: Path, keyed: bool) -> None:
    """The sink writes rows of an Iceberg table, appended or replaced by id, one commit per micro-batch."""
    binding = iceberg_binding(tmp_path)

    def stored() -> list[StoredRecord]:
        rows = [] if open_table(binding) is None else records_of("iceberg", tmp_path).to_pylist()
        return [StoredRecord(**row) for row in rows]

    no_server = "it writes files, without a server"
    note_conformance(
        check_sink(
            SinkUnderTest(
                "Iceberg, upserts" if keyed else "Iceberg",
                "exactly once",
                opening(lake_uri("iceberg", tmp_path) + ("&upsert_by=id" if keyed else "")),
                stored,
                keyed=keyed,
                without={
                    "bad record": "the destination takes every record",
                    "credentials": no_server,
                    "slow server": no_server,
                },
            )
        )
    )
