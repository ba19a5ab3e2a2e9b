"""Describing a job: its graph has all valid descriptions, and nothing of refused ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from described_streams import (
    SCHEMA,
    BadSideOutput,
    Measured,
    Steered,
    Streams,
    UnstorableState,
    gives_int,
    yields,
)

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.streams.graph import Port, ProcessNode, SinkNode, SourceNode, TransformNode
from penstock.streams.stream import KeyedStream


@pytest.mark.parametrize(
    "describe",
    [
        lambda streams: streams.keyed.process("s", UnstorableState()),
        lambda streams: streams.keyed.process("s", BadSideOutput()),
        lambda streams: streams.data.map(gives_int, name="n"),
        lambda streams: streams.job.data_stream("x", schema=5),
        lambda streams: streams.data.sink_to("out", protobuf=Measured),
    ],
    ids=["state", "side output", "map", "stream", "sink"],
)
def test_what_is_refused_leaves_no_trace(streams: Streams, describe: Callable[[Streams], object]) -> None:
    """In a notebook the corrected line works under the same name."""
    before = dict(streams.job.graph.nodes)
    with pytest.raises(JobDefinitionError):
        describe(streams)
    assert streams.job.graph.nodes == before


def test_the_graph_says_what_was_described() -> None:
    """Nodes are in the order of description, each with its inputs."""
    job = ps.Job("job")
    readings = job.data_stream("readings", schema=Measured, allow_nan=True)
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


def test_key_by_gives_a_keyed_stream_of_the_same_records(streams: Streams) -> None:
    """A stream may be keyed in several ways, and does not change."""
    data = streams.data
    by_id, by_both = data.key_by("id"), data.key_by("id", "name")
    assert isinstance(by_id, KeyedStream)
    assert by_id.stream is by_both.stream is data
    assert (by_id.key.fields, by_both.key.fields) == (("id",), ("id", "name"))
