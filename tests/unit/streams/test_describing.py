"""Describing a job: what is wrong is said at once, names the thing, and says what to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

import penstock as ps
from penstock.errors import JobDefinitionError, SchemaError
from penstock.streams.graph import Port, ProcessNode, SinkNode, SourceNode, TransformNode
from penstock.streams.stream import KeyedStream

SCHEMA = "id INT, name STRING, value DOUBLE"
PENSTOCKS_FIELD = make_dataclass("Odd", [("__offset", int)])


@dataclass
class Reading:
    id: int
    value: float


class Plain(ps.ProcessFunction):
    side_outputs: ClassVar[dict[str, Any]] = {"alarms": Reading}

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Reading]:
        yield record


class Steered(ps.ConnectedProcessFunction):
    def process_control(self, record: Any, ctx: ps.Context) -> None:
        pass

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Reading]:
        yield record


class Silent(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> None:
        pass


class Unannotated(ps.ProcessFunction):
    def process_record(self, record, ctx):  # type: ignore[no-untyped-def]
        yield record


class Empty(ps.ProcessFunction):
    pass


class NoControl(ps.ConnectedProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Reading]:
        yield record


class UnstorableState(Plain):
    memory = ps.ValueState(complex)


class SharedState(Plain):
    first = second = ps.ValueState(int)


class InstanceState(Plain):
    def __init__(self) -> None:
        self.memory = ps.ValueState(int)


class Gathering(Plain):
    waiting = ps.OperatorListState(int)


class Counting(Plain):
    count = ps.ValueState(int)


class ToKeys(Gathering):
    @ps.on_command("flush")
    def flush(self, payload: None, ctx: ps.CommandContext) -> None:
        pass


class UnstorableItems(Plain):
    waiting = ps.OperatorListState(complex)


class NamelessSideOutput(Plain):
    side_outputs: ClassVar[dict[str, Any]] = {"": Reading}


class SideOutputList(Plain):
    side_outputs: ClassVar[Any] = ["alarms"]


class BadSideOutput(Plain):
    side_outputs: ClassVar[dict[str, Any]] = {"alarms": int}


class Described:
    """A job with a stream of each kind, to be used wrongly."""

    def __init__(self) -> None:
        self.job = ps.Job("job")
        self.data = self.job.data_stream("readings", schema=SCHEMA)
        self.control = self.job.control_stream("settings", schema=SCHEMA)
        self.keyed = self.data.key_by("id")
        self.keyed_control = self.control.key_by("id")
        self.connected = self.keyed.connect(self.keyed_control)
        self.other = ps.Job("other").control_stream("elsewhere", schema=SCHEMA).key_by("id")


def gives_none(record: Any) -> None:
    pass


def gives_int(record: Any) -> int:
    return 1


def gives_float(record: Any) -> float:
    return 1.0


def gives_list(record: Any) -> list[Reading]:
    return [record]


def gives_one(record: Any) -> Reading:
    return Reading(1, 1.0)


def gives_perhaps(record: Any) -> list[Reading] | None:
    return None


def yields(record: Any) -> Iterator[Reading]:
    yield record


async def is_async(record: Any) -> Reading:
    return Reading(1, 1.0)


def twice(name: str) -> Callable[[Described], object]:
    """The same name a second time, for each kind of thing."""

    def run(d: Described) -> None:
        for _ in range(2):
            if name == "stream":
                d.job.data_stream("twice", schema=SCHEMA)
            elif name == "transform":
                d.data.filter(bool, name="twice")
            elif name == "step":
                d.keyed.process("twice", Plain())
            else:
                d.data.sink_to("twice")

    return run


WRONG: dict[str, tuple[Callable[[Described], object], tuple[str, ...]]] = {
    # names
    "job without a name": (lambda d: ps.Job(""), ("'' is not a job name", "letters")),
    "job name with a space": (lambda d: ps.Job("my job"), ("'my job' is not a job name", "letters")),
    "job name that is no text": (lambda d: ps.Job(5), ("5 is not a job name",)),  # type: ignore[arg-type]
    "stream name with a slash": (
        lambda d: d.job.data_stream("a/b", schema=SCHEMA),
        ("'a/b' is not a stream name", "letters"),
    ),
    "stream name of penstock": (
        lambda d: d.job.control_stream("dead-letters", schema=SCHEMA),
        ("'dead-letters' is taken", "another stream name"),
    ),
    "sink without a name": (lambda d: d.data.sink_to(""), ("'' is not a sink name", "letters")),
    "sink name with a slash": (lambda d: d.data.sink_to("a/b"), ("'a/b' is not a sink name",)),
    "sink name of penstock": (
        lambda d: d.data.sink_to("dead-letters"),
        ("'dead-letters' is taken", "another sink name"),
    ),
    "step without a name": (lambda d: d.keyed.process("", Plain()), ("'' is not a step name", "slash")),
    "step name with a slash": (lambda d: d.keyed.process("a/b", Plain()), ("'a/b' is not a step name",)),
    "step name that is no text": (lambda d: d.keyed.process(1, Plain()), ("1 is not a step name",)),  # type: ignore[arg-type]
    "two streams": (twice("stream"), ("two streams named 'twice'", "name of its own")),
    "two transforms": (twice("transform"), ("two transforms named 'twice'",)),
    "two steps": (twice("step"), ("two steps named 'twice'",)),
    "two sinks": (twice("sink"), ("two sinks named 'twice'",)),
    # key groups
    "no key group": (lambda d: ps.Job("j", key_groups=0), ("key_groups is 0", "from 1 to 32768")),
    "too many key groups": (lambda d: ps.Job("j", key_groups=32769), ("key_groups is 32769",)),
    "half a key group": (lambda d: ps.Job("j", key_groups=1.5), ("key_groups is 1.5", "integer")),  # type: ignore[arg-type]
    # schemas
    "no schema": (
        lambda d: d.job.data_stream("x", schema=5),
        ("Stream 'x'", "5 is not a schema", "dataclass"),
    ),
    "unknown type in a schema": (
        lambda d: d.job.data_stream("x", schema="a INTEGR"),
        ("Stream 'x'", "'integr'", "Known types"),
    ),
    "one field name twice": (
        lambda d: d.job.data_stream("x", schema="a INT, b INT, a INT"),
        ("Stream 'x'", "the field 'a' twice", "rename one"),
    ),
    "field name of penstock": (
        lambda d: d.job.data_stream("x", schema=PENSTOCKS_FIELD),
        ("Stream 'x'", "'__offset'", "rename it"),
    ),
    "protobuf of a stream": (
        lambda d: d.job.data_stream("x", schema=SCHEMA, protobuf="Reading"),
        ("Stream 'x'", "'Reading' is not a message class"),
    ),
    "protobuf of a sink": (
        lambda d: d.data.sink_to("out", protobuf=Reading),
        ("Sink 'out'", "Reading", "is not a message class", "protobuf compiler"),
    ),
    # transforms
    "no function": (lambda d: d.data.map("double"), ("map needs a function, not 'double'",)),  # type: ignore[arg-type]
    "map without a result": (
        lambda d: d.data.map(lambda r: r),
        ("The map 'map-1' does not say what it emits", "output=MyRecord"),
    ),
    "map to None": (lambda d: d.data.map(gives_none), ("The map 'map-1'", "return None", "Annotate")),
    "map to a number": (
        lambda d: d.data.map(gives_int, name="n"),
        ("The map 'n'", "int is not a schema", "dataclass"),
    ),
    "map to a penstock field": (
        lambda d: d.data.flat_map(yields, output=PENSTOCKS_FIELD),
        ("The flat_map 'flat_map-1'", "'__offset'"),
    ),
    "map that yields": (lambda d: d.data.map(yields), ("map needs", "yields yields", "use flat_map")),
    "filter that yields": (lambda d: d.data.filter(yields), ("filter needs", "use flat_map")),
    "async partial": (
        lambda d: d.data.filter(partial(is_async)),
        ("filter needs a plain function", "is async"),
    ),
    "map to text": (lambda d: d.data.map(str.upper, output="a TEXT"), ("'map-1'", "'text'")),
    "map to a list": (
        lambda d: d.data.map(gives_list, output=Reading),
        ("map needs", "gives_list is annotated to return several", "use flat_map"),
    ),
    "flat_map to one record": (
        lambda d: d.data.flat_map(gives_one),
        ("flat_map needs", "gives_one is annotated to return one", "use map"),
    ),
    "async map": (lambda d: d.data.map(is_async), ("map needs a plain function", "is_async is async")),
    # keys
    "no key": (lambda d: d.data.key_by(), ("'readings'", "a field, several fields, or a function")),
    "unknown key": (
        lambda d: d.data.key_by("idd"),
        ("'readings'", "no field 'idd'", "id, name, value"),
    ),
    "key of a wrong type": (lambda d: d.data.key_by("value"), ("'readings'", "double cannot be a key")),
    "second key of a wrong type": (lambda d: d.data.key_by("id", "value"), ("value: double cannot",)),
    "key function without a type": (
        lambda d: d.data.key_by(lambda r: r.id),
        ("'readings'", "result type is not known", "key_type=int"),
    ),
    "key function of a wrong type": (lambda d: d.data.key_by(gives_float), ("'readings'", "double cannot")),
    "two key functions": (lambda d: d.data.key_by(gives_int, gives_int), ("'readings'", "one function")),
    "type of a key field": (
        lambda d: d.data.key_by("id", key_type=str),
        ("'readings'", "keyed by fields", "remove key_type"),
    ),
    # connect
    "nothing connected": (lambda d: d.keyed.connect(), ("at least one control stream",)),
    "unkeyed control": (
        lambda d: d.keyed.connect(d.control),  # type: ignore[arg-type]
        ("'settings'", "settings.key_by(...)"),
    ),
    "data stream connected": (
        lambda d: d.keyed.connect(d.keyed),
        ("'readings' is not a control stream", "job.control_stream(...)"),
    ),
    "something else connected": (
        lambda d: d.keyed.connect("settings"),  # type: ignore[arg-type]
        ("keyed or broadcast control streams, not 'settings'",),
    ),
    "other job's control": (
        lambda d: d.keyed.connect(d.other),
        ("'elsewhere' belongs to another job", "Declare it in this one"),
    ),
    "keys of two types": (
        lambda d: d.keyed.connect(d.control.key_by("name")),
        ("'readings' (int64)", "'settings' (string)", "same type"),
    ),
    "control connected twice": (
        lambda d: d.keyed.connect(d.keyed_control, d.control.key_by("id")),
        ("'settings' is connected twice", "Connect it once"),
    ),
    "control as data": (
        lambda d: d.keyed_control.process("s", Plain()),
        ("Step 's' has no data stream", "'settings' is a control stream", "job.data_stream(...)"),
    ),
    "control connected to control": (
        lambda d: d.keyed_control.connect(d.keyed_control).process("s", Steered()),
        ("Step 's' has no data stream", "'settings' is a control stream"),
    ),
    # functions
    "class as function": (lambda d: d.keyed.process("s", Plain), ("'s'", "class Plain", "Plain()")),  # type: ignore[arg-type]
    "no process function": (
        lambda d: d.keyed.process("s", gives_none),  # type: ignore[arg-type]
        ("'s' needs a ProcessFunction, not function",),
    ),
    "name and function swapped": (
        lambda d: d.keyed.process(Plain(), "s"),  # type: ignore[arg-type]
        ("needs a ProcessFunction, not str",),
    ),
    "unconnected function": (
        lambda d: d.connected.process("s", Plain()),  # type: ignore[arg-type]
        ("'s' needs a ConnectedProcessFunction, not Plain",),
    ),
    "connected function": (
        lambda d: d.keyed.process("s", Steered()),
        ("'s' has a Steered", "connect one first"),
    ),
    "nothing overridden": (
        lambda d: d.keyed.process("s", Empty()),
        ("Empty of step 's'", "process_record nor process_batch"),
    ),
    "no process_control": (
        lambda d: d.connected.process("s", NoControl()),
        ("NoControl of step 's'", "process_control"),
    ),
    "no output type": (
        lambda d: d.keyed.process("s", Unannotated()),
        ("Step 's' does not say what it emits", "output=MyRecord"),
    ),
    "output that is not a schema": (
        lambda d: d.keyed.process("s", Plain(), output=int),
        ("Step 's'", "int is not a schema"),
    ),
    # states
    "unstorable state": (
        lambda d: d.keyed.process("s", UnstorableState()),
        ("State 'memory' of step 's'", "complex"),
    ),
    "one state under two names": (
        lambda d: d.keyed.process("s", SharedState()),
        ("Step 's'", "'first' and 'second'", "declare one for each"),
    ),
    "state on the instance": (
        lambda d: d.keyed.process("s", InstanceState()),
        ("Step 's'", "'memory' on the instance", "class InstanceState"),
    ),
    # steps without a key
    "keyed state without a key": (
        lambda d: d.data.process("s", Counting()),
        ("Step 's' has no key", "ValueState 'count'", "readings.key_by(...)", "ps.OperatorListState"),
    ),
    "operator state with a key": (
        lambda d: d.keyed.process("s", Gathering()),
        ("Step 's' has a key", "OperatorListState 'waiting'", "ps.ListState", "readings.process(...)"),
    ),
    "handler for keys without a key": (
        lambda d: d.data.process("s", ToKeys()),
        ("Step 's' has no key", "ToKeys.flush", """on_command('flush', scope="step")"""),
    ),
    "unstorable items": (
        lambda d: d.data.process("s", UnstorableItems()),
        ("State 'waiting' of step 's'", "complex"),
    ),
    "process on a control stream": (
        lambda d: d.control.process("s", Plain()),
        ("Step 's' has no data stream", "'settings' is a control stream"),
    ),
    "keyed control without a key": (
        lambda d: d.data.connect(d.keyed_control),  # type: ignore[arg-type]
        ("The stream 'readings' has no key", "'settings'", "settings.broadcast()"),
    ),
    "connected function without a key": (
        lambda d: d.data.process("s", Steered()),
        ("'s' has a Steered", "connect one first"),
    ),
    "process behind a silent step": (
        lambda d: d.keyed.process("s", Silent()).process("t", Plain()),
        ("Step 's' emits nothing",),
    ),
    # outputs
    "unknown side output": (
        lambda d: d.keyed.process("s", Plain()).side_output("alerts"),
        ("Step 's' has no side output 'alerts'", "'alarms'"),
    ),
    "side output of a step without": (
        lambda d: d.connected.process("s", Steered()).side_output("alarms"),
        ("no side output 'alarms'", "none"),
    ),
    "main output as side output": (
        lambda d: d.keyed.process("s", Plain()).side_output(""),
        ("no side output ''",),
    ),
    "side output without a name": (
        lambda d: d.keyed.process("s", NamelessSideOutput()),
        ("side_outputs of step 's'", "mapping of names"),
    ),
    "list of side outputs": (
        lambda d: d.keyed.process("s", SideOutputList()),
        ("side_outputs of step 's'", "mapping of names"),
    ),
    "side output that is not a schema": (
        lambda d: d.keyed.process("s", BadSideOutput()),
        ("Side output 'alarms' of step 's'", "int is not a schema"),
    ),
    "sink behind a silent step": (
        lambda d: d.keyed.process("s", Silent()).sink_to("out"),
        ("Step 's' emits nothing", "output=MyRecord"),
    ),
    "map behind a silent step": (
        lambda d: d.keyed.process("s", Silent()).map(yields),
        ("Step 's' emits nothing",),
    ),
    "key behind a silent step": (
        lambda d: d.keyed.process("s", Silent()).key_by("id"),
        ("Step 's' emits nothing",),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_description_is_refused(wrong: str) -> None:
    """The line that is wrong raises; the message names the thing and says what to do."""
    describe, parts = WRONG[wrong]
    described = Described()
    with pytest.raises(JobDefinitionError) as raised:
        describe(described)
    message = str(raised.value)
    for part in parts:
        assert part in message
    assert message.endswith(".")
    assert len(message) < 400
    assert raised.value.fault == "user"


def test_errors_about_schemas_keep_their_class() -> None:
    """An error that is told anew with the name of the stream is still a SchemaError."""
    described = Described()
    with pytest.raises(SchemaError):
        described.data.key_by("value")
    with pytest.raises(SchemaError):
        described.job.data_stream("x", schema=5)


def test_a_refused_step_leaves_no_trace() -> None:
    """In a notebook the corrected line runs under the same name."""
    described = Described()
    before = dict(described.job.graph.nodes)
    for describe in (
        lambda: described.keyed.process("s", UnstorableState()),
        lambda: described.keyed.process("s", BadSideOutput()),
        lambda: described.data.map(gives_int, name="n"),
        lambda: described.job.data_stream("x", schema=5),
        lambda: described.data.sink_to("out", protobuf=Reading),
    ):
        with pytest.raises(JobDefinitionError):
            describe()
    assert described.job.graph.nodes == before


def test_the_graph_says_what_was_described() -> None:
    """Nodes stand in the order of the description, each knows where its records come from."""
    job = ps.Job("job")
    readings = job.data_stream("readings", schema=Reading, allow_nan=True)
    settings = job.control_stream("settings", schema=SCHEMA)
    hot = readings.filter(bool).flat_map(yields)
    step = hot.key_by("id").connect(settings.key_by("id")).process("check", Steered())
    step.sink_to("alerts")
    nodes = job.graph.nodes
    assert list(nodes) == [
        "source/readings",
        "source/settings",
        "transform/filter-1",
        "transform/flat_map-2",
        "step/check",
        "sink/alerts",
    ]
    source, check, sink = nodes["source/readings"], nodes["step/check"], nodes["sink/alerts"]
    assert isinstance(source, SourceNode)
    assert (source.allow_nan, source.is_control) == (True, False)
    assert isinstance(check, ProcessNode)
    assert [(e.stream, e.port, e.is_control) for e in check.edges] == [
        ("settings", Port("source/settings"), True),
        ("readings", Port("transform/flat_map-2"), False),
    ]
    assert isinstance(sink, SinkNode)
    assert sink.upstream == Port("step/check")
    assert sink.record_type.field_names == ("id", "value")
    transform = nodes["transform/flat_map-2"]
    assert isinstance(transform, TransformNode)
    assert transform.upstream == Port("transform/filter-1")


def test_a_side_output_has_its_own_name_and_type() -> None:
    """Downstream steps see the side output as a stream named STEP.OUTPUT."""
    step = Described().keyed.process("s", Plain())
    alarms = step.side_output("alarms")
    assert (alarms.name, alarms.is_control) == ("s.alarms", False)
    assert alarms.record_type.name == "Reading"


def test_what_becomes_of_a_control_stream_is_one() -> None:
    """A filtered or mapped control stream still steers; what a step emits is data."""
    described = Described()
    changed = described.control.filter(bool).map(lambda r: r, output=SCHEMA).flat_map(yields)
    assert changed.is_control
    connected = described.keyed.connect(changed.key_by("id"))
    assert not connected.process("s", Steered()).is_control


def test_one_control_stream_may_steer_by_two_keys() -> None:
    """The same control stream under different keys is two inputs."""
    job = ps.Job("job")
    routes = job.control_stream("routes", schema="a INT, b INT")
    keyed = job.data_stream("readings", schema=SCHEMA).key_by("id")
    keyed.connect(routes.key_by("a"), routes.key_by("b")).process("s", Steered())
    node = job.graph.nodes["step/s"]
    assert isinstance(node, ProcessNode)
    assert [edge.key.fields for edge in node.edges] == [("a",), ("b",), ("id",)]


def names_of_sinks(job: ps.Job) -> dict[str, str | None]:
    return {sink.name: sink.protobuf and sink.protobuf.full_name for sink in job.graph.sinks()}


class Wrapped(ps.ProcessFunction):
    side_outputs: ClassVar[dict[str, Any]] = {"text": StringValue}

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Int64Value]:
        yield record


def wrap(record: Any) -> Int64Value:
    return Int64Value(value=record.id)


def test_a_sink_knows_the_protobuf_message_of_its_stream() -> None:
    """A message class given as a schema anywhere reaches the sink; one given to the sink wins; a map drops it."""
    job = ps.Job("job")
    source = job.data_stream("numbers", schema=Int64Value)
    source.filter(bool).sink_to("filtered")
    source.map(lambda r: r, output=SCHEMA).sink_to("mapped")
    source.map(wrap).sink_to("annotated")
    source.map(wrap, output=StringValue).sink_to("declared")
    source.filter(bool).sink_to("given", protobuf=StringValue)
    step = source.key_by("value").process("s", Wrapped())
    step.sink_to("step")
    step.side_output("text").sink_to("side")
    source.key_by("value").process("t", Wrapped(), output=StringValue).sink_to("step-declared")
    number, text = "google.protobuf.Int64Value", "google.protobuf.StringValue"
    assert names_of_sinks(job) == {
        "filtered": number,
        "mapped": None,
        "annotated": number,
        "declared": text,
        "given": text,
        "step": number,
        "side": text,
        "step-declared": text,
    }


def test_a_stream_may_have_a_schema_beside_its_message() -> None:
    """`protobuf` says how records are encoded, `schema` what functions see."""
    job = ps.Job("job")
    job.data_stream("numbers", schema="value BIGINT", protobuf=Int64Value).sink_to("out")
    assert names_of_sinks(job) == {"out": "google.protobuf.Int64Value"}
    assert job.graph.sources()[0].record_type.name == "Record"


def test_annotations_say_what_a_transform_emits() -> None:
    """Of one record for map, of several or perhaps several for flat_map; `output` says it for functions without."""
    data = Described().data
    assert data.map(gives_one).record_type.name == "Reading"
    for function in (yields, gives_list, gives_perhaps):
        assert data.flat_map(function).record_type.name == "Reading"
    assert data.flat_map(lambda r: [r], output=Reading).record_type.name == "Reading"
    assert data.map(Reading, output=Reading).record_type.name == "Reading"


def test_transforms_get_names_in_order() -> None:
    """Names left out are made of the kind and the number of the transform."""
    data = Described().data
    streams = itertools.accumulate(range(3), lambda stream, _: stream.filter(bool), initial=data)
    *_, last = streams
    assert list(last.graph.nodes)[2:] == [f"transform/filter-{n}" for n in (1, 2, 3)]


def test_key_by_gives_a_keyed_stream_of_the_same_records() -> None:
    """A stream may be keyed in several ways; it is not changed by that."""
    data = Described().data
    by_id, by_both = data.key_by("id"), data.key_by("id", "name")
    assert isinstance(by_id, KeyedStream)
    assert by_id.stream is by_both.stream is data
    assert (by_id.key.fields, by_both.key.fields) == (("id",), ("id", "name"))
