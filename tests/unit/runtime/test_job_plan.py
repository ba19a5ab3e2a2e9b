"""The plan: which steps share a level, and which columns blocks have."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.streams.graph import Port, ProcessNode, SinkNode
from penstock.streams.stream import DataStream, KeyedStream


class Pass(ps.ProcessFunction):
    def process_record(self, record: object, ctx: ps.Context) -> Iterator[object]:
        yield record


class Steered(ps.ConnectedProcessFunction):
    def process_control(self, record: object, ctx: ps.Context) -> None:
        pass

    def process_record(self, record: object, ctx: ps.Context) -> Iterator[object]:
        yield record


SCHEMA = "id INT NOT NULL, value DOUBLE"


def plan_of(job: ps.Job, raw: tuple[str, ...] = (), keyed: tuple[str, ...] = ()) -> JobPlan:
    return JobPlan(job.graph, job.key_groups, frozenset(raw), frozenset(keyed), strict=False)


def levels(job: ps.Job) -> list[list[str]]:
    return [[node.step for node in level] for level in plan_of(job).levels()]


def keyed(stream: DataStream) -> KeyedStream:
    return stream.map(lambda record: record, output=SCHEMA).key_by("id")


def test_a_job_without_steps_has_no_level() -> None:
    """Records go straight from the source to the sink."""
    job = ps.Job("job")
    job.data_stream("readings", schema=SCHEMA).filter(bool).sink_to("out")
    assert levels(job) == []


def test_a_step_stands_behind_the_deepest_of_its_inputs() -> None:
    """Steps of one depth share a level, in the order of the job; transforms and control streams add no depth."""
    job = ps.Job("job")
    readings = job.data_stream("readings", schema=SCHEMA)
    settings = job.control_stream("settings", schema=SCHEMA)
    a = keyed(readings).process("a", Pass(), output=SCHEMA)
    b = keyed(a).connect(keyed(settings)).process("b", Steered(), output=SCHEMA)
    c = keyed(readings).connect(keyed(settings)).process("c", Steered(), output=SCHEMA)
    keyed(b).process("d", Pass(), output=SCHEMA)
    keyed(c).process("e", Pass(), output=SCHEMA)
    assert levels(job) == [["a", "c"], ["b", "e"], ["d"]]


@given(parents=st.lists(st.integers(0, 30), max_size=10))
def test_levels_follow_every_edge(parents: list[int]) -> None:
    """In any tree of steps each step stands exactly one level below the step that it reads."""
    job = ps.Job("job")
    streams: list[DataStream] = [job.data_stream("readings", schema=SCHEMA)]
    depth = [0]
    for number, parent in enumerate(parents):
        upstream = parent % len(streams)
        streams.append(streams[upstream].key_by("id").process(str(number), Pass(), output=SCHEMA))
        depth.append(depth[upstream] + 1)
    expected = [[str(n) for n, d in enumerate(depth[1:]) if d == level] for level in range(1, max(depth) + 1)]
    assert levels(job) == expected


def test_control_inputs_come_first() -> None:
    """Blocks sort by their input, so control streams have the lower numbers, in the order of `connect`."""
    job = ps.Job("job")
    readings = job.data_stream("readings", schema=SCHEMA)
    one = job.control_stream("one", schema=SCHEMA)
    two = job.control_stream("two", schema=SCHEMA)
    readings.key_by("id").connect(two.key_by("id"), one.key_by("id")).process("s", Steered(), output=SCHEMA)
    node = job.graph.nodes["step/s"]
    assert isinstance(node, ProcessNode)
    core = plan_of(job).core(node)
    assert [edge.stream for edge in node.edges] == ["two", "one", "readings"]
    assert [source.is_control for source in core.inputs] == [True, True, False]


def key_of(record: object) -> int:
    return 0


def test_blocks_carry_what_the_step_needs() -> None:
    """A computed key and raw bytes are included; a key that is a field is not sent twice."""
    job = ps.Job("job")
    readings = job.data_stream("readings", schema=SCHEMA)
    by_field = readings.filter(bool).key_by("id").process("by-field", Pass(), output=SCHEMA)
    readings.key_by(key_of).process("computed", Pass(), output=SCHEMA)
    by_field.map(lambda record: record, output=SCHEMA).key_by("id").process("next", Pass(), output=SCHEMA)

    def names(plan: JobPlan, step: str) -> list[str]:
        node = plan.graph.nodes[f"step/{step}"]
        assert isinstance(node, ProcessNode)
        found: list[str] = plan.step_schema(node, 0).names
        return found

    without, with_raw = plan_of(job), plan_of(job, raw=("readings",))
    assert names(without, "by-field") == ["id", "value", "__offset"]
    assert names(with_raw, "by-field") == ["id", "value", "__offset", "__raw"]
    assert names(with_raw, "computed") == ["id", "value", "__offset", "__key", "__raw"]
    assert names(with_raw, "next") == ["id", "value", "__offset"], "emitted records have no bytes"


def test_keys_travel_only_to_sinks_that_want_them() -> None:
    """They do so when a later sink wants keys, also after transforms."""
    job = ps.Job("job")
    step = job.data_stream("readings", schema=SCHEMA).key_by("id").process("s", Pass(), output=SCHEMA)
    step.sink_to("plain")
    step.filter(bool, name="f").map(lambda record: record, output=SCHEMA).sink_to("keyed")
    node = job.graph.nodes["step/s"]
    plain, keyed_sink = job.graph.nodes["sink/plain"], job.graph.nodes["sink/keyed"]
    assert isinstance(node, ProcessNode)
    assert isinstance(plain, SinkNode)
    assert isinstance(keyed_sink, SinkNode)
    plan = plan_of(job, keyed=("keyed",))
    assert plan.wants_keys(Port(node.id))
    assert plan.emission_schema(node, "").field("__key").type == pa.int64()
    assert plan.sink_schema(keyed_sink).names == ["id", "value", "__message_key", "__offset"]
    assert plan.sink_schema(plain).names == ["id", "value"]
    assert plan_of(job).emission_schema(node, "").names == ["id", "value"]
    assert not plan_of(job, keyed=("plain",)).wants_keys(Port("transform/f"))


def test_a_key_of_emitted_records_has_the_type_of_the_step() -> None:
    """A key of several fields travels as a struct."""
    job = ps.Job("job")
    step = job.data_stream("readings", schema="a INT, b STRING").key_by("a", "b")
    step.process("s", Pass(), output=SCHEMA).sink_to("out")
    node = job.graph.nodes["step/s"]
    assert isinstance(node, ProcessNode)
    key_type = plan_of(job, keyed=("out",)).emission_schema(node, "").field("__key").type
    assert [(f.name, f.type) for f in key_type] == [("a", pa.int64()), ("b", pa.string())]


@pytest.mark.parametrize("pair", [(("a", "b"), ("a.b", "")), (("a", ""), ("a", "x"))])
def test_destinations_of_outputs_differ(pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    """Outputs of steps with similar names are distinguished."""
    assert emission_destination(*pair[0]) != emission_destination(*pair[1])


def test_a_plan_travels() -> None:
    """Workers get the plan pickled and see the same levels and columns."""
    job = ps.Job("job")
    job.data_stream("readings", schema=SCHEMA).key_by("id").process("s", Pass(), output=SCHEMA)
    again = pickle.loads(pickle.dumps(plan_of(job, raw=("readings",))))
    (level,) = again.levels()
    assert again.step_schema(level[0], 0).names == ["id", "value", "__offset", "__raw"]
