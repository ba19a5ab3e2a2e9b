"""Outputs of steps: the main one, side outputs, and the protobuf messages in which sinks write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from described_streams import (
    SCHEMA,
    BadSideOutput,
    Measured,
    Plain,
    Silent,
    Steered,
    Streams,
    refused,
    yields,
)
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

import penstock as ps


def test_a_side_output_has_its_own_name_and_type(streams: Streams) -> None:
    """Downstream steps see the side output as a stream named STEP.OUTPUT."""
    alarms = streams.keyed.process("s", Plain()).side_output("alarms")
    assert (alarms.name, alarms.is_control) == ("s.alarms", False)
    assert alarms.record_type.name == "Measured"


@pytest.mark.parametrize("name", ["alerts", ""])
def test_a_step_has_the_side_outputs_of_its_function(streams: Streams, name: str) -> None:
    """The error lists them; the main output is not among them."""
    with refused(f"Step 's' has no side output {name!r}", "'alarms'"):
        streams.keyed.process("s", Plain()).side_output(name)


def test_a_step_may_have_no_side_output(streams: Streams) -> None:
    """The message says that there is none."""
    with refused("no side output 'alarms'", "none"):
        streams.connected.process("s", Steered()).side_output("alarms")


class NamelessSideOutput(Plain):
    side_outputs: ClassVar[dict[str, Any]] = {"": Measured}


class ListOfSideOutputs(Plain):
    side_outputs: ClassVar[Any] = ["alarms"]


@pytest.mark.parametrize("function", [NamelessSideOutput, ListOfSideOutputs])
def test_side_outputs_are_a_mapping_of_names(streams: Streams, function: type[Plain]) -> None:
    """They map names to schemas."""
    with refused("side_outputs of step 's'", "mapping of names"):
        streams.keyed.process("s", function())


def test_a_side_output_is_of_records(streams: Streams) -> None:
    """Its schema must be valid."""
    with refused("Side output 'alarms' of step 's'", "int is not a schema"):
        streams.keyed.process("s", BadSideOutput())


@pytest.mark.parametrize(
    "use",
    [
        lambda silent: silent.process("t", Plain()),
        lambda silent: silent.map(yields),
        lambda silent: silent.key_by("id"),
        lambda silent: silent.sink_to("out"),
    ],
    ids=["process", "map", "key_by", "sink_to"],
)
def test_nothing_stands_behind_a_step_that_emits_nothing(
    streams: Streams, use: Callable[[ps.ProcessedStream], object]
) -> None:
    """The message says how to declare the step's output."""
    with refused("Step 's' emits nothing", "output=MyRecord"):
        use(streams.keyed.process("s", Silent()))


def messages_of_sinks(job: ps.Job) -> dict[str, str | None]:
    return {sink.name: sink.protobuf and sink.protobuf.full_name for sink in job.graph.sinks()}


class Wrapped(ps.ProcessFunction):
    side_outputs: ClassVar[dict[str, Any]] = {"text": StringValue}

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Int64Value]:
        yield record


def wrap(record: Any) -> Int64Value:
    return Int64Value(value=record.id)


def test_a_sink_knows_the_protobuf_message_of_its_stream() -> None:
    """A message class given as a schema reaches the sink; one given to the sink overrides it; a map drops it."""
    job = ps.Job("job")
    source = job.data_stream("numbers", schema=Int64Value)
    source.filter(bool).sink_to("filtered")
    source.map(lambda record: record, output=SCHEMA).sink_to("mapped")
    source.map(wrap).sink_to("annotated")
    source.map(wrap, output=StringValue).sink_to("declared")
    source.filter(bool).sink_to("given", protobuf=StringValue)
    step = source.key_by("value").process("s", Wrapped())
    step.sink_to("step")
    step.side_output("text").sink_to("side")
    source.key_by("value").process("t", Wrapped(), output=StringValue).sink_to("step-declared")
    number, text = "google.protobuf.Int64Value", "google.protobuf.StringValue"
    assert messages_of_sinks(job) == {
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
    """`protobuf` says how records are encoded, `schema` what functions get."""
    job = ps.Job("job")
    job.data_stream("numbers", schema="value BIGINT", protobuf=Int64Value).sink_to("out")
    assert messages_of_sinks(job) == {"out": "google.protobuf.Int64Value"}
    assert job.graph.sources()[0].record_type.name == "Record"
