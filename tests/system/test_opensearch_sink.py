"""The OpenSearch sink on a real node: documents are the newest, whatever happens to tasks, runs and the node."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from opensearch_server import OpenSearchServer
from versioned_rows import CHANGE, READING, rows, started_sink, write

from penstock.bindings.parse import parse_binding
from penstock.bindings.versioned_types import OpenSearchBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.machine.local_server import free_port
from penstock.records.types import RecordType
from penstock.sinks.base import Sink, TaskContext


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    with OpenSearchServer(tmp_path_factory.mktemp("opensearch")) as started:
        yield started


_numbers = itertools.count(1)


@pytest.fixture
def index() -> str:
    """Return the name of an index that does not exist."""
    return f"index-{next(_numbers)}"


def bind(uri: str) -> OpenSearchBinding:
    found = parse_binding("latest", uri, "sink")
    assert isinstance(found, OpenSearchBinding)
    return found


def opened(uri: str, kind: RecordType = READING, key: Sequence[str] | None = None) -> Sink:
    """Return the sink of a run that has just begun."""
    return started_sink(bind(uri), kind, key)


def test_a_document_is_the_last_record(server: OpenSearchServer, index: str) -> None:
    """Rewriting changes nothing, and neither does a late write of an older version."""
    sink = opened(server.uri(index))
    first = rows(READING, (1, 20.5, "a"), (2, 1.0, None), (1, 21.0, "b"))
    second = rows(READING, (1, 22.0, None), (3, 1e20, 'q"é\n'))
    expected = {
        "1": {"sensor": 1, "celsius": 22.0, "room": None},
        "2": {"sensor": 2, "celsius": 1.0, "room": None},
        "3": {"sensor": 3, "celsius": 1e20, "room": 'q"é\n'},
    }
    for _ in range(2):
        assert write(sink, 1000, first, second) == []
        assert server.documents(index) == expected
    assert write(sink, 900, first, second, rows(READING, (2, 7.0, "zombie"))) == []
    assert server.documents(index) == expected
    assert server.ask("GET", f"/{index}/_doc/3")["_version"] == 1004


def test_upserts_replace_and_delete(server: OpenSearchServer, index: str) -> None:
    """The last change of a key counts; a deleted key stays deleted though an older attempt writes it late."""
    sink = opened(server.uri(index), CHANGE, ["sensor"])
    write(
        sink, 100, rows(CHANGE, ("+U", 1, 1.0), ("+U", 2, 2.0)), rows(CHANGE, ("-D", 1, 1.0), ("+U", 2, 3.0))
    )
    write(sink, 200, rows(CHANGE, ("-D", 3, 1.0), ("+U", 4, 1.0), ("-D", 4, 1.0), ("+U", 4, 2.0)))
    write(sink, 100, rows(CHANGE, ("+U", 1, 1.0)))
    assert server.documents(index) == {
        "2": {"sensor": 2, "celsius": 3.0},
        "4": {"sensor": 4, "celsius": 2.0},
    }
    with pytest.raises(BindingError, match=r"their key is \(celsius\)"):
        opened(server.uri(index), CHANGE, ["celsius"])


def test_a_field_names_the_index(server: OpenSearchServer, index: str) -> None:
    """Rejected are records without the field, with an invalid index name, or with a value of another type."""
    sink = opened(server.uri(index + "-{room}"))
    assert write(sink, 100, rows(READING, (1, 1.0, "a"), (2, 2.0, "b"))) == []
    assert list(server.documents(f"{index}-b")) == ["2"]
    rejected = write(sink, 200, rows(READING, (3, 1.0, None), (4, 1.0, "UPPER"), (5, 1.0, "a")))
    assert [one.row for one in rejected] == [0, 1]
    assert rejected[0].reason == f"A field of its index '{index}-{{room}}' is null."
    assert "invalid_index_name_exception" in rejected[1].reason
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"room": {"type": "integer"}}}})
    (only,) = write(opened(server.uri(index)), 300, rows(READING, (1, 1.0, "7"), (2, 2.0, "hall")))
    assert (only.row, json.loads(only.raw)) == (1, {"sensor": 2, "celsius": 2.0, "room": "hall"})
    assert "mapper_parsing_exception: failed to parse field [room]" in only.reason
    assert list(server.documents(index)) == ["1"]


def test_an_id_that_no_document_can_have_is_rejected(server: OpenSearchServer, index: str) -> None:
    """Otherwise the server would refuse the whole request."""
    sink = opened(server.uri(index, "?id={room}"))
    ids = ["a", "", "x" * 513, "\N{GRINNING FACE}" * 129, "y" * 512]
    rejected = write(sink, 100, rows(READING, *((number, 1.0, name) for number, name in enumerate(ids))))
    assert [one.row for one in rejected] == [1, 2, 3]
    assert rejected[1].reason == "Its id '{room}' has 513 bytes, and may have 1 to 512."
    assert list(server.documents(index)) == ["a", "y" * 512]
    changes = opened(server.uri(index), CHANGE, ["sensor"])
    assert write(changes, 200, rows(CHANGE, ("-D", 1, 1.0))) == []


@pytest.mark.chaos
def test_large_blocks_are_several_requests(server: OpenSearchServer, index: str) -> None:
    """A document that the server does not accept is rejected."""
    sink = opened(server.uri(index))
    write(sink, 100, rows(READING, *((number, 1.0, "a") for number in range(5_000))))
    assert len(server.documents(index)) == 5_000
    (only,) = write(sink, 10_000, rows(READING, (1, 1.0, "x" * (101 << 20)), (2, 9.0, "b")))
    assert only.row == 0
    assert "more than" in only.reason
    assert server.documents(index)["2"]["celsius"] == 9.0
    # A tenth of the server's memory, which is more than it ever accepts at once.
    sink = opened(server.uri(index, "?id={sensor}&retry_s=1"))
    (only,) = write(sink, 20_000, rows(READING, (1, 1.0, "a"), (3, 1.0, "x" * (30 << 20)), (2, 8.0, "b")))
    assert only.row == 1
    assert "takes (429" in only.reason
    assert server.documents(index)["2"]["celsius"] == 8.0


@pytest.mark.chaos
def test_random_attempts_end_at_the_last_values(server: OpenSearchServer, index: str) -> None:
    """Attempts end anywhere, and send their remaining writes between later attempts."""
    chance = random.Random(3)
    sink, version = opened(server.uri(index), CHANGE, ["sensor"]), 10
    expected: dict[str, float] = {}
    zombies: list[tuple[Any, list[pa.RecordBatch]]] = []
    for batch in range(20):
        changes = [
            [
                (chance.choice(["+U", "+U", "-D"]), chance.randrange(6), batch * 10.0 + place)
                for place in range(4)
            ]
            for _ in range(3)
        ]
        blocks = [rows(CHANGE, *block) for block in changes]
        for kind, sensor, value in itertools.chain(*changes):
            expected[str(sensor)] = value
            if kind == "-D":
                del expected[str(sensor)]
        for is_last in (False, True):
            version += 20
            task, rest = sink.task(TaskContext(batch, 0, 0, "line", version), CHANGE), list(blocks)
            if not is_last:
                zombies.append((task, rest))
            for _ in range(3 if is_last else chance.randrange(3)):
                task.write(rest.pop(0), None)
                zombie, left = chance.choice(zombies)
                if left and zombie is not task:
                    zombie.write(left.pop(0), None)
        assert {key: one["celsius"] for key, one in server.documents(index).items()} == expected


def test_an_index_that_takes_nothing_ends_the_run(server: OpenSearchServer, index: str) -> None:
    """No record is to blame."""
    server.ask("PUT", f"/{index}", {"settings": {"index.blocks.write": True}})
    with pytest.raises(ExternalSystemError, match=r"takes no documents \(403 cluster_block_exception"):
        write(opened(server.uri(index)), 100, rows(READING, (1, 1.0, "a")))
    server.ask("PUT", f"/{index}-closed")
    server.ask("POST", f"/{index}-closed/_close")
    with pytest.raises(ExternalSystemError, match=r"takes no documents \(400 index_closed_exception"):
        write(opened(server.uri(f"{index}-closed")), 100, rows(READING, (1, 1.0, "a")))


def test_a_server_that_is_away_is_an_error(server: OpenSearchServer, index: str) -> None:
    """The error comes at once at the start, and later after retry_s."""
    with pytest.raises(ExternalSystemError, match="cannot be reached or written"):
        opened(f"opensearch://127.0.0.1:{free_port()}/{index}?id=1")
    with pytest.raises(BindingError, match="does not answer with TLS"):
        opened(server.uri(index, "?id=1&tls=true"))


def test_doctor_asks_the_server(server: OpenSearchServer, index: str) -> None:
    """It writes nothing."""
    told = check_binding("latest", bind(server.uri(index)), is_source=False)
    assert (told.status, told.found) == (
        "ok",
        f"{server.url} answers as OpenSearch 2.19.6; nothing was written",
    )
