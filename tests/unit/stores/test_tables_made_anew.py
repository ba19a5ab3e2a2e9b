"""A table that is made anew with another key ends the run, although it takes the records; the servers are stand-ins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.errors import ExternalSystemError
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.sinks.base import Sink, TaskContext
from penstock.stores import cassandra_sink, dynamo_sink

READING = record_type("sensor BIGINT NOT NULL, room STRING")


def sink_at(uri: str) -> Sink:
    return open_sink(parse_binding("latest", uri, "sink"), READING, None)


class KnownTable:
    """A session and its cluster, which know of a table what the servers have told."""

    def __init__(self) -> None:
        self.refreshed = 0
        self.cluster = self
        self.tell("sensor")

    def tell(self, key: str) -> None:
        columns = {
            name: SimpleNamespace(name=name, cql_type=kind, is_static=False)
            for name, kind in (("sensor", "bigint"), ("room", "text"))
        }
        table = SimpleNamespace(columns=columns, primary_key=[columns[key]])
        self.metadata = SimpleNamespace(keyspaces={"plant": SimpleNamespace(tables={"latest": table})})

    def prepare(self, statement: str) -> Any:
        return SimpleNamespace(text=statement)

    def refresh_table_metadata(self, *_: Any, **__: Any) -> None:
        self.refreshed += 1

    def shutdown(self) -> None:
        """Do nothing."""


def test_cassandra_tells_its_clients_of_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the key is the same, nothing is asked."""
    known = KnownTable()
    monkeypatch.setattr("penstock.stores.cassandra_clients._connect", lambda _: known)
    monkeypatch.setattr(cassandra_sink, "get_session", lambda _: known)
    sink = sink_at("cassandra://h:1/plant/latest?datacenter=d")
    sink.prepare("line", "")
    task = sink.task(TaskContext(0, 0, 0, "line", version=1), READING)
    empty = READING.batch([])
    task.write(empty, None)
    assert known.refreshed == 0
    known.tell("room")
    with pytest.raises(
        ExternalSystemError, match=r"changed since the start of this run .its primary key is another"
    ):
        task.write(empty, None)
    assert known.refreshed == 1


def test_dynamodb_is_asked_for_its_key_once_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it is away then, the next commit after a minute asks again."""
    keys: list[dict[str, str] | Exception] = [{"sensor": "N"}, ExternalSystemError("away"), {"room": "S"}]
    now = SimpleNamespace(s=0.0)

    def check_table(_: Any) -> dict[str, str]:
        found = keys.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(dynamo_sink, "check_table", check_table)
    monkeypatch.setattr(dynamo_sink.time, "monotonic", lambda: now.s)
    sink = sink_at("dynamodb://latest?region=eu-west-1")
    sink.prepare("line", str(tmp_path))
    for at_s in (59.0, 60.0, 61.0):
        now.s = at_s
        sink.commit(0, [b""])
    assert len(keys) == 1
    now.s = 121.0
    sink.commit(1, [])
    with pytest.raises(ExternalSystemError, match=r"was made anew .* with the key room"):
        sink.commit(2, [b""])
