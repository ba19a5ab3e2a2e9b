"""Keys and headers of messages: from the fields that a URI names, and from the records' origins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from java_hashes import MURMUR2
from java_hashes import murmur2 as murmur2_of_one

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import BindingError
from penstock.jobs.job_sinks import check_origin, refuse_origin
from penstock.records.schemas import record_type
from penstock.sinks.base import RecordOrigin, TaskContext
from penstock.sinks.kafka_producers import producer_settings
from penstock.sinks.message_partitions import murmur2, partitions_of
from penstock.sinks.message_parts import (
    ORIGIN_HEADER,
    Messages,
    check_parts,
    hashes_of,
    headers_of,
    keys_of,
)
from penstock.sinks.message_sizes import oversized
from penstock.streams.graph import SinkNode

KIND = record_type("room INT, site STRING, tag BINARY, x DOUBLE")
BATCH = pa.RecordBatch.from_pylist(
    [
        {"room": 7, "site": "ü", "tag": b"\xff", "x": 1.0},
        {"room": None, "site": None, "tag": None, "x": None},
    ],
    KIND.schema,
)


@dataclass
class Room:
    """A record with the fields that become keys and headers."""

    room: int


def bind(query: str) -> KafkaBinding:
    binding = parse_binding("alarms", f"kafka://h:1/t?{query}", "sink")
    assert isinstance(binding, KafkaBinding)
    return binding


def context(batch_id: int) -> TaskContext:
    return TaskContext(batch_id, 3, 0, "line")


def test_a_field_is_the_key() -> None:
    """Its form is the one that metadata reads; without such a field, records keep their own keys."""
    own = pa.array([b"a", b"b"], pa.binary())
    assert keys_of(bind(""), BATCH, own) is own
    assert keys_of(bind("key=room"), BATCH, own).to_pylist() == [b"7", None]  # type: ignore[union-attr]
    assert keys_of(bind("key=tag"), BATCH, None).to_pylist() == [b"\xff", None]  # type: ignore[union-attr]


def test_fields_are_headers() -> None:
    """Headers have the fields' names or others."""
    found = headers_of(bind("headers=room,site:place-name,tag"), BATCH, context(0), None)
    assert {name: column.to_pylist() for name, column in found.items()} == {
        "room": [b"7", None],
        "place-name": ["ü".encode(), None],
        "tag": [b"\xff", None],
    }


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("key=rooms", r"key=rooms, but Record has no field 'rooms'; its fields are room, site, tag, x"),
        (
            "headers=room,x:y",
            r"headers=x, but that field is double; keys, headers and what chooses a partition are text, bytes or",
        ),
        ("partition_by=place", r"partition_by=place, but Record has no field 'place'"),
        ("partition_by=x", r"partition_by=x, but that field is double"),
    ],
)
def test_a_field_that_is_none_is_refused(query: str, wrong: str) -> None:
    """The error comes when the job starts."""
    with pytest.raises(BindingError, match=wrong):
        check_parts(bind(query), KIND)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("headers=a:b,c:b", "gives the same name twice"),
        ("headers=a,,b", "must name fields"),
        ("key=a-b", "must name one field"),
        ("key=a,b", "must name one field"),
        ("partition_by=a,b", "must name one field"),
        ("partitioner=java", "must be one of murmur2_random, murmur2, consistent_random"),
        ("kafka.partitioner=murmur2", "write partitioner=... without kafka. before it"),
        ("partition_by=step-key", "must name one field"),
        ("partition_by=room&partitioner=murmur2", "partition_by and partitioner exclude each other"),
    ],
)
def test_a_wrong_parameter_is_refused(query: str, wrong: str) -> None:
    """The error says what is expected."""
    with pytest.raises(BindingError, match=wrong):
        bind(query)


def test_the_partitioner_is_java_s_by_default() -> None:
    """The client's setting follows the parameter."""
    assert producer_settings(bind(""), None)["partitioner"] == "murmur2_random"
    assert (
        producer_settings(bind("partitioner=consistent_random"), None)["partitioner"] == "consistent_random"
    )


def test_the_hash_is_that_of_java_s_client() -> None:
    """This holds for values of all lengths, also at either end of a buffer."""
    known = [value & 0x7FFFFFFF for value in MURMUR2.values()]
    values = pa.array([b"before", *MURMUR2, None, b"behind"], pa.binary()).slice(1, len(MURMUR2) + 1)
    assert murmur2(values).to_pylist() == [*known, None]
    assert [murmur2(pa.array([value], pa.binary()))[0].as_py() for value in MURMUR2] == known
    assert murmur2(pa.array([], pa.binary())).to_pylist() == []
    assert murmur2(pa.array([b"", None], pa.binary())).to_pylist() == [275646681, None]


@given(values=st.lists(st.none() | st.binary(max_size=12)), begin=st.integers(0, 3))
def test_hashes_of_many_are_those_of_each(values: list[bytes | None], begin: int) -> None:
    """This holds for all lengths, and for any offset of the column's buffer."""
    expected = [None if value is None else murmur2_of_one(value) for value in values[begin:]]
    assert murmur2(pa.array(values, pa.binary()).slice(begin)).to_pylist() == expected


def test_a_field_or_the_record_s_key_chooses_the_partition() -> None:
    """The message's key does not matter then; where the field is null, the record's key is used."""
    own = pa.array([b"a", b"b"], pa.binary())
    by_room = hashes_of(bind("key=site&partition_by=room"), BATCH, own)
    by_key = hashes_of(bind("key=site&partition_by=record-key"), BATCH, own)
    assert by_room is not None
    assert by_key is not None
    assert by_room.to_pylist() == [murmur2(pa.array([b"7"]))[0].as_py(), None]
    assert by_key.to_pylist() == murmur2(own).to_pylist()
    none = hashes_of(bind("partition_by=record-key"), BATCH, None)
    assert none is not None
    assert none.null_count == 2
    assert hashes_of(bind("key=site"), BATCH, own) is None
    assert partitions_of(pa.array([7, None, 12], pa.int32()), 5) == [2, -1, 2]


def test_parts_stay_with_their_messages() -> None:
    """This holds when messages are filtered, or taken one by one."""
    values, hashes = pa.array([b"a", b"b", b"c"]), pa.array([1, 2, None], pa.int32())
    all_of_them = Messages(values, values, {"h": values}, hashes)
    for some in (all_of_them.filter(pa.array([False, True, True])), all_of_them.slice(1, 2)):
        assert (some.values.to_pylist(), some.headers["h"].to_pylist()) == ([b"b", b"c"], [b"b", b"c"])
        assert some.keys is not None
        assert some.hashes is not None
        assert (some.keys.to_pylist(), some.hashes.to_pylist()) == ([b"b", b"c"], [2, None])
    bare = Messages(values)
    assert (bare.slice(0, 1).keys, bare.filter(pa.array([True] * 3)).hashes) == (None, None)


def origins(
    stream: str, offsets: list[int], batch_id: int, *, is_source: bool, branch: str = ""
) -> list[str]:
    origin = RecordOrigin(branch, stream, "00002", pa.array(offsets, pa.int64()), is_source)
    found = headers_of(bind("origin=true"), BATCH.slice(0, 0), context(batch_id), origin)
    return [one.decode() for one in found[ORIGIN_HEADER].to_pylist()]


def test_the_origin_tells_messages_apart() -> None:
    """The origin is the offset in a source, in any micro-batch, or the place in a step's output."""
    made_by_flat_map = ["line/readings/00002/0/5/0", "line/readings/00002/0/5/1", "line/readings/00002/0/9/0"]
    assert origins("readings", [5, 5, 9], 4, is_source=True) == made_by_flat_map
    assert origins("readings", [5, 5, 9], 6, is_source=True) == made_by_flat_map
    assert origins("watch.hot", [0, 1], 4, is_source=False) == [
        "line/watch.hot/00002/4/0/0",
        "line/watch.hot/00002/4/1/0",
    ]
    assert origins("a/b", [0], 4, is_source=True, branch="0001") == ["line/0001/a%2Fb/00002/0/0/0"]
    assert origins("readings", [], 4, is_source=True) == []
    # In real time a step's output has origins of its own; a flat_map after the step extends them.
    names = pa.array(["7/in/00001/12/0", "7/in/00001/12/0", "7/in/00001/13/0"])
    origin = RecordOrigin("", "watch", "00002", pa.array([0, 0, 1], pa.int64()), is_source=False, names=names)
    found = headers_of(bind("origin=true"), BATCH.slice(0, 0), context(4), origin)
    assert found[ORIGIN_HEADER].to_pylist() == [
        b"line/watch/7/in/00001/12/0/0",
        b"line/watch/7/in/00001/12/0/1",
        b"line/watch/7/in/00001/13/0/0",
    ]
    assert headers_of(bind("origin=true"), BATCH, context(0), None) == {}


def test_headers_count_for_the_size() -> None:
    """A message without headers is smaller."""
    values, name = pa.array([bytes(100)] * 2, pa.binary()), "h" * 10
    headers = {name: pa.array([bytes(50), None], pa.binary())}
    (size,) = oversized(values, None, 200, headers).values()
    (without,) = set(oversized(values, None, 100).values())
    assert size == without + 1 + 10 + 1 + 50
    assert oversized(values, None, 100, headers) == {0: size, 1: without}


class Remind(ps.ProcessFunction):
    """Emits when a timer fires."""

    def process_record(self, record: Any, ctx: ps.Context) -> None:
        """Set a timer."""

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Room]:
        """Emit."""
        yield Room(1)


def test_some_outputs_have_no_origin_in_real_time() -> None:
    """A run refuses these: windows, timers, and steps after steps; dead letters are refused in either mode."""
    job = ps.Job("j")
    rooms = job.data_stream("rooms", schema=Room)
    rooms.sink_to("plain")
    counts = rooms.key_by("room").count("counted")
    counts.map(lambda one: Room(one.room), output=Room).sink_to("counts")
    counts.key_by("room").count("counted-again").sink_to("again")
    rooms.key_by("room").window(ps.TumblingWindows("10s", time="processing")).count("in-windows").sink_to(
        "windows"
    )
    rooms.key_by("room").process("remind", Remind(), output=Room).sink_to("reminders")

    def check(sink: str, query: str = "origin=true") -> None:
        node = job.graph.nodes[f"sink/{sink}"]
        assert isinstance(node, SinkNode)
        check_origin(job, node, bind(query))

    check("plain")
    check("counts")
    for sink, wrong in [
        ("again", "step 'counted-again' is behind step 'counted', whose records have no place in a stream"),
        ("windows", "the windows of step 'in-windows' emit what many records have caused"),
        (
            "reminders",
            "step 'remind' has timers, which emit when their time has come. Use delivery=exactly-once",
        ),
    ]:
        check(sink, "origin=false")
        with pytest.raises(BindingError, match=wrong):
            check(sink)
    with pytest.raises(BindingError, match="origin=true has no meaning for alarms"):
        refuse_origin(bind("origin=true"))
