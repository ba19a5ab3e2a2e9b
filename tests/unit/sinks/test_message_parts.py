"""Keys and headers of messages, from the fields that a URI names and from where records come from."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.sinks.base import RecordOrigin, TaskContext
from penstock.sinks.kafka_producers import producer_settings
from penstock.sinks.message_parts import ORIGIN_HEADER, check_parts, headers_of, keys_of
from penstock.sinks.message_sizes import oversized

KIND = record_type("room INT, site STRING, tag BINARY, x DOUBLE")
BATCH = pa.RecordBatch.from_pylist(
    [
        {"room": 7, "site": "ü", "tag": b"\xff", "x": 1.0},
        {"room": None, "site": None, "tag": None, "x": None},
    ],
    KIND.schema,
)


def bind(query: str) -> KafkaBinding:
    binding = parse_binding("alarms", f"kafka://h:1/t?{query}", "sink")
    assert isinstance(binding, KafkaBinding)
    return binding


def context(batch_id: int) -> TaskContext:
    return TaskContext(batch_id, 3, 0, "line")


def test_a_field_is_the_key() -> None:
    """In the form in which metadata reads it; without one, records bring their own."""
    own = pa.array([b"a", b"b"], pa.binary())
    assert keys_of(bind(""), BATCH, own) is own
    assert keys_of(bind("key=room"), BATCH, own).to_pylist() == [b"7", None]  # type: ignore[union-attr]
    assert keys_of(bind("key=tag"), BATCH, None).to_pylist() == [b"\xff", None]  # type: ignore[union-attr]


def test_fields_are_headers() -> None:
    """Under their names or others."""
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
            r"headers=x, but that field is double; keys and headers are text, bytes or integers",
        ),
    ],
)
def test_a_field_that_is_none_is_refused(query: str, wrong: str) -> None:
    """When the job starts."""
    with pytest.raises(BindingError, match=wrong):
        check_parts(bind(query), KIND)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("headers=a:b,c:b", "gives the same name twice"),
        ("headers=a,,b", "must name fields"),
        ("key=a-b", "must name fields"),
        ("partitioner=java", "must be one of murmur2_random, murmur2, consistent_random"),
        ("kafka.partitioner=murmur2", "write partitioner=... without kafka. before it"),
    ],
)
def test_a_wrong_parameter_is_refused(query: str, wrong: str) -> None:
    """With what it should be."""
    with pytest.raises(BindingError, match=wrong):
        bind(query)


def test_the_partitioner_is_java_s_by_default() -> None:
    """The setting of the client follows the parameter."""
    assert producer_settings(bind(""), None)["partitioner"] == "murmur2_random"
    assert (
        producer_settings(bind("partitioner=consistent_random"), None)["partitioner"] == "consistent_random"
    )


def origins(
    stream: str, offsets: list[int], batch_id: int, *, is_source: bool, branch: str = ""
) -> list[str]:
    origin = RecordOrigin(branch, stream, "00002", pa.array(offsets, pa.int64()), is_source)
    found = headers_of(bind("origin=true"), BATCH.slice(0, 0), context(batch_id), origin)
    return [one.decode() for one in found[ORIGIN_HEADER].to_pylist()]


def test_the_origin_tells_messages_apart() -> None:
    """By the offset in a source, whatever the micro-batch, or by the place in the output of a step."""
    made_by_flat_map = ["line/readings/00002/0/5/0", "line/readings/00002/0/5/1", "line/readings/00002/0/9/0"]
    assert origins("readings", [5, 5, 9], 4, is_source=True) == made_by_flat_map
    assert origins("readings", [5, 5, 9], 6, is_source=True) == made_by_flat_map
    assert origins("watch.hot", [0, 1], 4, is_source=False) == [
        "line/watch.hot/00002/4/0/0",
        "line/watch.hot/00002/4/1/0",
    ]
    assert origins("a/b", [0], 4, is_source=True, branch="0001") == ["line/0001/a%2Fb/00002/0/0/0"]
    assert origins("readings", [], 4, is_source=True) == []
    assert headers_of(bind("origin=true"), BATCH, context(0), None) == {}


def test_headers_count_for_the_size() -> None:
    """A message without one is smaller."""
    values, name = pa.array([bytes(100)] * 2, pa.binary()), "h" * 10
    headers = {name: pa.array([bytes(50), None], pa.binary())}
    (size,) = oversized(values, None, 200, headers).values()
    (without,) = set(oversized(values, None, 100).values())
    assert size == without + 1 + 10 + 1 + 50
    assert oversized(values, None, 100, headers) == {0: size, 1: without}


def test_real_time_and_dead_letters_have_no_origin() -> None:
    """Both would be refused by a run."""
    from penstock.jobs.job_sinks import check_origin, refuse_origin
    from penstock.streams.graph import SinkNode

    job = ps.Job("j")
    readings = job.data_stream("readings", schema="room INT")
    readings.sink_to("plain")
    readings.key_by("room").count("counted").sink_to("counts")
    plain, counts = (job.graph.nodes[f"sink/{name}"] for name in ("plain", "counts"))
    assert isinstance(plain, SinkNode)
    assert isinstance(counts, SinkNode)
    check_origin(job, plain, bind("origin=true"))
    with pytest.raises(BindingError, match="numbers the output of step 'counted' within a micro-batch"):
        check_origin(job, counts, bind("origin=true"))
    with pytest.raises(BindingError, match="origin=true has no meaning for alarms"):
        refuse_origin(bind("origin=true"))
