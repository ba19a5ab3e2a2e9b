"""The Redis sink on a real server: values are the newest, whatever happens to tasks, runs and the server."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conformance_page import note_conformance
from redis_server import PASSWORD, RedisServer
from silent_server import in_haste

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import RedisBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, Sink, TaskContext
from penstock.stores import redis_clients
from penstock.stores.redis_sink import RedisSink
from penstock.testing.connectors import SINK_CHECKS, SinkUnderTest, StoredRecord, check_sink

READING = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
CHANGE = record_type("_change STRING NOT NULL, sensor BIGINT NOT NULL, celsius DOUBLE")
KEY = "0/reading:{sensor}"
# The example is that of the page about Redis.
RIGHTS = "+@connection +@transaction +evalsha +script|load +hset +hmget +hdel +expire +strlen +set +del"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Any]:
    """Return a client of the server, which is empty."""
    with server.client() as client:
        client.flushall()
        yield client


def bind(uri: str) -> RedisBinding:
    found = parse_binding("latest", uri, "sink")
    assert isinstance(found, RedisBinding)
    return found


def opened(
    server: RedisServer,
    query: str = "",
    kind: RecordType = READING,
    key: Sequence[str] | None = None,
    **parts: str,
) -> Sink:
    """Return the sink of a run that has just begun."""
    sink = open_sink(bind(server.uri(KEY, query, **parts)), kind, None, upsert_key=key)
    assert isinstance(sink, RedisSink)
    sink.prepare("line", "")
    return sink


def rows(kind: RecordType, *values: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(kind.field_names, row, strict=True)) for row in values], kind.schema
    )


def readings(*values: tuple[Any, ...]) -> pa.RecordBatch:
    return rows(READING, *values)


def begin(sink: Sink, batch: int, attempt: int = 0, partition: int = 0) -> RejectingTask:
    task = sink.task(TaskContext(batch, partition, attempt, "line"), READING)
    assert isinstance(task, RejectingTask)
    return task


def write(
    sink: Sink, batch: int, *blocks: pa.RecordBatch, attempt: int = 0, partition: int = 0
) -> list[Rejection]:
    """Write a micro-batch of one sink partition."""
    task, rejected = begin(sink, batch, attempt, partition), []
    for block in blocks:
        task.write(block, None)
        rejected += task.rejections()
    task.finish()
    return rejected


def values(redis: Any) -> dict[str, dict[str, str]]:
    return {key: redis.hgetall(key) for key in sorted(redis.keys("reading:*"))}


def test_a_hash_has_the_fields_of_the_last_record(server: RedisServer, redis: Any) -> None:
    """A null removes its field; foreign fields stay; rewriting changes nothing."""
    redis.hset("reading:1", "owner", "me")
    sink = opened(server)
    blocks = readings((1, 20.5, "a"), (2, None, None)), readings((1, 21.0, None), (3, 1e20, 'q"é\n'))
    expected = {
        "reading:1": {"owner": "me", "sensor": "1", "celsius": "21"},
        "reading:2": {"sensor": "2"},
        "reading:3": {"sensor": "3", "celsius": "1e+20", "room": 'q"é\n'},
    }
    for _ in range(2):
        assert write(sink, 0, *blocks) == []
        assert values(redis) == expected
    assert redis.ttl("reading:1") == -1


def test_each_type_has_its_text(server: RedisServer, redis: Any) -> None:
    """Integers beyond Lua's range are exact; bytes stay bytes."""
    kind = record_type(
        "sensor BIGINT NOT NULL, t TIMESTAMP, d DATE, x BINARY, m DECIMAL(5,2), b BOOLEAN, l ARRAY<INT>"
    )
    sink = opened(server, kind=kind)
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    write(
        sink, 0, rows(kind, (2**62 + 1, moment, dt.date(2026, 1, 2), b"a\x00", Decimal("1.50"), True, [1, 2]))
    )
    assert values(redis)[f"reading:{2**62 + 1}"] == {
        "sensor": str(2**62 + 1),
        "t": "2026-01-02T03:04:05Z",
        "d": "2026-01-02",
        "x": "a\x00",
        "m": "1.50",
        "b": "true",
        "l": "[1,2]",
    }


def test_a_string_is_the_record_as_json_and_expires(server: RedisServer, redis: Any) -> None:
    """Hashes expire with ttl_s as well."""
    write(opened(server, "?type=json&ttl_s=100"), 0, readings((1, 20.5, "a"), (1, 21.0, None)))
    assert json.loads(redis.get("reading:1")) == {"sensor": 1, "celsius": 21.0, "room": None}
    assert 90 < redis.ttl("reading:1") <= 100
    redis.flushdb()
    write(opened(server, "?ttl_s=100"), 0, readings((1, 20.5, "a")))
    assert 90 < redis.ttl("reading:1") <= 100


@pytest.mark.parametrize("query", ["", "?type=json"])
def test_upserts_replace_and_delete(server: RedisServer, redis: Any, query: str) -> None:
    """The last change of a key counts."""
    sink = opened(server, query, CHANGE, ["sensor"])
    write(sink, 0, rows(CHANGE, ("+U", 1, 1.0), ("+U", 2, 2.0)), rows(CHANGE, ("-D", 1, 1.0), ("+U", 2, 3.0)))
    write(sink, 1, rows(CHANGE, ("-D", 3, 1.0), ("+U", 4, 1.0), ("-D", 4, 1.0), ("+U", 4, 2.0)))
    assert sorted(redis.keys("reading:*")) == ["reading:2", "reading:4"]
    read = redis.hgetall if not query else lambda key: json.loads(redis.get(key))
    assert [
        {name: float(value) for name, value in read(key).items()} for key in ("reading:2", "reading:4")
    ] == [
        {"sensor": 2.0, "celsius": 3.0},
        {"sensor": 4.0, "celsius": 2.0},
    ]


def test_the_key_of_upserts_is_that_of_the_uri(server: RedisServer) -> None:
    """Otherwise a deletion could not name its key."""
    with pytest.raises(BindingError, match=r"their key is \(sensor, celsius\).*it is 'reading:{sensor}'"):
        opened(server, kind=CHANGE, key=["sensor", "celsius"])
    with pytest.raises(BindingError, match=r"{sensor}, which must be a field of text or an integer"):
        opened(server, kind=record_type("sensor DOUBLE"))


@pytest.mark.parametrize("query", ["", "?type=json"])
def test_what_redis_refuses_is_rejected_record_by_record(server: RedisServer, redis: Any, query: str) -> None:
    """A value of another Redis type stays."""
    redis.rpush("reading:2", "a list")
    rejected = write(opened(server, query), 0, readings(*((n, 1.0, "a") for n in range(5))))
    (only,) = rejected
    assert only.row == 2
    assert "refuses the value of the key 'reading:2': WRONGTYPE" in only.reason
    assert json.loads(only.raw) == {"sensor": 2, "celsius": 1.0, "room": "a"}
    assert redis.lrange("reading:2", 0, -1) == ["a list"]
    assert len(redis.keys("reading:*")) == 5


def test_a_record_may_have_thousands_of_fields(server: RedisServer, redis: Any) -> None:
    """This is more than the stack of a script holds."""
    kind = record_type("sensor BIGINT, " + ", ".join(f"f{number} STRING" for number in range(8_100)))
    sink = opened(server, kind=kind)
    for value in ("x", None):
        assert write(sink, 0, rows(kind, (1, *[value] * 8_100))) == []
        assert redis.hlen("reading:1") == (8_101 if value else 1)


def test_no_record_has_the_key_of_a_fence(server: RedisServer, redis: Any) -> None:
    """Otherwise such a record could block the sink, now or whenever it is replayed."""
    sink = open_sink(bind(server.uri("0/{room}")), READING, None)
    sink.prepare("line", "")
    rejected = write(
        sink, 0, readings((1, 1.0, "penstock:fence:line:latest"), (2, 1.0, None), (3, 1.0, "reading:a"))
    )
    assert [one.row for one in rejected] == [0, 1]
    assert sorted(redis.keys("*")) == ["penstock:fence:line:latest", "reading:a"]
    assert set(redis.hgetall("penstock:fence:line:latest")) == {"run", "0"}


def test_a_record_without_its_key_is_rejected(server: RedisServer, redis: Any) -> None:
    """The other records are written."""
    sink = open_sink(bind(server.uri("0/reading:{room}")), READING, None)
    sink.prepare("line", "")
    rejected = write(sink, 0, readings((1, 1.0, "a"), (2, 1.0, None), (3, 1.0, "b")))
    assert [(one.row, one.reason) for one in rejected] == [
        (1, "A field of its key 'reading:{room}' is null.")
    ]
    assert sorted(redis.keys("reading:*")) == ["reading:a", "reading:b"]


def test_blocks_of_any_size_are_written(server: RedisServer, redis: Any) -> None:
    """Large blocks take several scripts."""
    sink = opened(server)
    write(sink, 0, readings(*((n, 1.0, "a") for n in range(12_345))))
    write(sink, 1, readings(*((n, 1.0, "x" * 400_000) for n in range(20))))
    assert redis.dbsize() == 12_346
    assert redis.hstrlen("reading:19", "room") == 400_000
    assert redis.hget("reading:12344", "room") == "a"


def test_an_older_attempt_writes_nothing_more(server: RedisServer, redis: Any) -> None:
    """It is fenced once a later attempt, micro-batch or run has begun to write; other sink partitions are
    independent.
    """
    sink = opened(server)
    older = begin(sink, 0, attempt=1)
    older.write(readings((1, 1.0, "a")), None)
    later = begin(sink, 0, attempt=2)
    later.write(readings((1, 1.0, "a")), None)
    with pytest.raises(ExternalSystemError, match=r"a later attempt writes to the keys reading:{sensor}"):
        older.write(readings((1, 2.0, "a")), None)
    later.write(readings((1, 2.0, "a")), None)
    write(sink, 1, readings((1, 3.0, "a")), attempt=0)
    with pytest.raises(ExternalSystemError, match="a later attempt"):
        later.write(readings((1, 4.0, "a")), None)
    write(sink, 0, readings((2, 2.0, "a")), partition=1)
    next_run = opened(server)
    with pytest.raises(ExternalSystemError, match="a later run of the job writes to"):
        write(sink, 9, readings((1, 5.0, "a")), partition=2)
    # A checkpoint that has gone back may write its micro-batches again.
    write(next_run, 0, readings((1, 6.0, "a")))
    assert values(redis)["reading:1"]["celsius"] == "6"


def test_random_attempts_end_at_the_last_values(server: RedisServer, redis: Any) -> None:
    """Tasks end anywhere, or run beside later ones, in runs that repeat the last micro-batch."""
    chance = random.Random(4)
    sink, expected, attempt, refused = opened(server), {}, 0, 0
    zombies: list[tuple[RejectingTask, list[pa.RecordBatch]]] = []
    for batch in range(60):
        blocks = [
            readings(
                *((chance.randrange(6), batch * 10.0 + block, "a") for _ in range(1 + chance.randrange(3)))
            )
            for block in range(3)
        ]
        expected |= {row["sensor"]: row["celsius"] for block in blocks for row in block.to_pylist()}
        for repeat in range(1 + chance.randrange(3)):
            if repeat and chance.random() < 0.4:
                sink = opened(server)
            attempt += 1
            task, rest = begin(sink, batch, attempt), list(blocks)
            if chance.random() < 0.5:
                for _ in range(chance.randrange(3)):
                    task.write(rest.pop(0), None)
                zombies.append((task, rest))
        attempt += 1
        task = begin(sink, batch, attempt)
        for block in blocks:
            task.write(block, None)
            for zombie, left in chance.sample(zombies, min(len(zombies), 2)):
                if left:
                    with pytest.raises(ExternalSystemError, match="writes nothing more"):
                        zombie.write(left.pop(0), None)
                    refused += 1
        task.finish()
        found = {int(one["sensor"]): float(one["celsius"]) for one in values(redis).values()}
        assert found == expected
    assert refused > 50


def test_a_server_that_is_away_is_an_error_and_nothing_is_lost(server: RedisServer, redis: Any) -> None:
    """The task fails; when the server is back, its next attempt writes all records."""
    sink = opened(server)
    write(sink, 0, readings((1, 1.0, "a")))
    server.kill()
    try:
        with pytest.raises(ExternalSystemError, match="does not answer"):
            write(sink, 1, readings((2, 1.0, "a")), attempt=1)
    finally:
        server.start()
    write(sink, 1, readings((2, 1.0, "a")), attempt=2)
    assert list(values(redis)) == ["reading:1", "reading:2"]


def test_a_server_without_its_scripts_gets_them(server: RedisServer, redis: Any) -> None:
    """Redis may flush scripts at any time. Without the fence it is unknown which writer is the newest."""
    sink = opened(server)
    redis.script_flush()
    write(sink, 0, readings((1, 1.0, "a")))
    redis.flushall()
    with pytest.raises(ExternalSystemError, match="no longer has the key penstock:fence:line:latest"):
        write(sink, 1, readings((1, 1.0, "a")))
    write(opened(server), 1, readings((1, 1.0, "a")))
    assert list(values(redis)) == ["reading:1"]


def test_a_full_server_is_an_error(server: RedisServer, redis: Any) -> None:
    """No record is to blame."""
    sink = opened(server)
    redis.config_set("maxmemory", "1kb")
    try:
        with pytest.raises(ExternalSystemError, match=r"cannot be written .*maxmemory"):
            write(sink, 0, readings((1, 1.0, "a")))
    finally:
        redis.config_set("maxmemory", "0")


def test_tls_and_logins(server: RedisServer, redis: Any, tmp_path: Path) -> None:
    """Errors are reported at the start, without the password."""
    cafile = server.authority.certificate
    write(opened(server, f"?cafile={cafile}", scheme="rediss"), 0, readings((1, 1.0, "a")))
    assert list(values(redis)) == ["reading:1"]
    with pytest.raises(BindingError, match=r"is not trusted .*cafile=PATH"):
        opened(server, scheme="rediss")
    with pytest.raises(BindingError, match="refuses the login") as raised:
        opened(server, password="wrong-one")
    assert "wrong-one" not in str(raised.value)
    with pytest.raises(BindingError, match=r"refuses the login .*out of range"):
        open_sink(bind(server.uri("999/reading:{sensor}")), READING, None).prepare("line", "")
    redis.acl_setuser(
        "clerk", enabled=True, passwords=["+pw"], keys=["penstock:*", "reading:1"], commands=RIGHTS.split()
    )
    uri = f"redis://clerk@127.0.0.1:{server.port}/{KEY}?password=file:{tmp_path}/password"
    (tmp_path / "password").write_text("pw\n")
    sink = open_sink(bind(uri), READING, None)
    sink.prepare("line", "")
    write(sink, 0, readings((1, 2.0, "a")))
    with pytest.raises(BindingError, match="the user may not write to the keys"):
        write(sink, 1, readings((2, 2.0, "a")))
    redis.acl_setuser("clerk", enabled=True, passwords=["-pw", "+new"])
    redis.client_kill_filter(user="clerk")
    with pytest.raises(ExternalSystemError, match="refuses the login"):
        write(sink, 1, readings((1, 3.0, "b")))
    (tmp_path / "password").write_text("new\n")
    # The next connection has the password that the file has by now.
    write(sink, 1, readings((1, 3.0, "b")))


def test_doctor_connects(server: RedisServer) -> None:
    """It writes nothing."""
    found = check_binding("latest", bind(server.uri(KEY)), is_source=False)
    assert (found.status, found.found) == (
        "ok",
        f"127.0.0.1:{server.port} lets the job connect to the database 0",
    )
    wrong = check_binding("latest", bind(server.uri(KEY, password="no")), is_source=False)
    assert wrong.status == "failed"


def test_the_sink_is_held_to_the_conformance_kit(
    server: RedisServer, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are hashes under keys with their id. In the check with a bad record, one of the keys holds a
    list.
    """
    monkeypatch.setenv("RIGHT", PASSWORD)
    monkeypatch.setenv("WRONG", "not-the-password")
    # Each check has 10,000 ids, and this one's fourth record is bad.
    redis.rpush(f"kit:{SINK_CHECKS.index('bad record') * 10_000 + 3}", "other")

    def opening(port: int, login: str) -> Callable[[], Sink]:
        binding = parse_binding("kit", f"redis://127.0.0.1:{port}/0/kit:{{id}}?password=env:{login}", "sink")
        return lambda: open_sink(binding, SinkUnderTest.record_type, None)

    def stored() -> list[StoredRecord]:
        hashes = [redis.hgetall(key) for key in redis.keys("kit:*") if redis.type(key) == "hash"]
        return [StoredRecord(int(one["id"]), one["value"]) for one in hashes]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "Redis",
                "idempotent by key",
                opening(server.port, "RIGHT"),
                stored,
                bad="for a key that holds a list",
                with_wrong_login=opening(server.port, "WRONG"),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch, lambda port: opening(port, "RIGHT")(), (redis_clients, "_ANSWER_S", 1)
                ),
                limit_s=90.0,
            )
        )
    )
