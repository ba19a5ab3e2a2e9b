"""Connecting control streams to data: valid combinations, and the errors for invalid ones."""

from __future__ import annotations

import pytest
from described_streams import SCHEMA, Plain, Steered, Streams, refused, yields

import penstock as ps
from penstock.streams.graph import ProcessNode


def test_what_becomes_of_a_control_stream_is_one(streams: Streams) -> None:
    """A filtered or mapped control stream is still control; a step's output is data."""
    changed = streams.control.filter(bool).map(lambda record: record, output=SCHEMA).flat_map(yields)
    assert changed.is_control
    connected = streams.keyed.connect(changed.key_by("id"))
    assert not connected.process("s", Steered()).is_control


def test_one_control_stream_may_steer_by_two_keys() -> None:
    """The same control stream under different keys counts as two inputs."""
    job = ps.Job("job")
    routes = job.control_stream("routes", schema="a INT, b INT")
    keyed = job.data_stream("readings", schema=SCHEMA).key_by("id")
    keyed.connect(routes.key_by("a"), routes.key_by("b")).process("s", Steered())
    node = job.graph.nodes["step/s"]
    assert isinstance(node, ProcessNode)
    assert [edge.key.fields for edge in node.edges] == [("a",), ("b",), ("id",)]


def test_something_is_connected(streams: Streams) -> None:
    """At least one stream is required."""
    with refused("at least one control stream"):
        streams.keyed.connect()


def test_a_control_stream_is_keyed_or_broadcast(streams: Streams) -> None:
    """It must be so before it is connected."""
    with refused("'settings'", "settings.key_by(...)"):
        streams.keyed.connect(streams.control)  # type: ignore[arg-type]


def test_a_data_stream_steers_nothing(streams: Streams) -> None:
    """The message says how a control stream is declared."""
    with refused("'readings' is not a control stream", "job.control_stream(...)"):
        streams.keyed.connect(streams.keyed)


def test_only_streams_are_connected(streams: Streams) -> None:
    """Not their names."""
    with refused("keyed or broadcast control streams, not 'settings'"):
        streams.keyed.connect("settings")  # type: ignore[arg-type]


def test_streams_of_two_jobs_are_not_connected(streams: Streams) -> None:
    """Each job declares its own streams."""
    other = ps.Job("other").control_stream("elsewhere", schema=SCHEMA)
    with refused("'elsewhere' belongs to another job", "Declare it in this one"):
        streams.keyed.connect(other.key_by("id"))


def test_connected_streams_have_keys_of_one_type(streams: Streams) -> None:
    """The message has both types."""
    with refused("'readings' (int64)", "'settings' (string)", "same type"):
        streams.keyed.connect(streams.control.key_by("name"))


def test_a_control_stream_is_connected_once(streams: Streams) -> None:
    """Connecting it twice under one key is refused."""
    with refused("'settings' is connected twice", "Connect it once"):
        streams.keyed.connect(streams.keyed_control, streams.control.key_by("id"))


@pytest.mark.parametrize("name", ["control", "keyed_control"])
def test_a_step_has_a_data_stream(streams: Streams, name: str) -> None:
    """This holds with a key and without one."""
    with refused("Step 's' has no data stream", "'settings' is a control stream", "job.data_stream(...)"):
        getattr(streams, name).process("s", Plain())


def test_control_that_is_connected_to_control_is_no_data_stream(streams: Streams) -> None:
    """It must be connected to a data stream."""
    with refused("Step 's' has no data stream", "'settings' is a control stream"):
        streams.keyed_control.connect(streams.keyed_control).process("s", Steered())


def test_a_stream_without_a_key_is_steered_by_broadcast_alone(streams: Streams) -> None:
    """The message says how."""
    with refused("The stream 'readings' has no key", "'settings'", "settings.broadcast()"):
        streams.data.connect(streams.keyed_control)  # type: ignore[arg-type]
