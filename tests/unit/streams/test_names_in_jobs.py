"""Names in a job, and its key groups: those that cannot be used are refused where they are given."""

from __future__ import annotations

from typing import Any

import pytest
from described_streams import SCHEMA, Plain, Streams, refused

import penstock as ps


@pytest.mark.parametrize("name", ["", "my job", 5])
def test_a_job_has_a_name_of_letters_and_digits(name: Any) -> None:
    """The message says what may be in one."""
    with refused(f"{name!r} is not a job name", "letters"):
        ps.Job(name)


def test_a_stream_has_a_name_that_can_be_a_part_of_a_path(streams: Streams) -> None:
    """It has no slash."""
    with refused("'a/b' is not a stream name", "letters"):
        streams.job.data_stream("a/b", schema=SCHEMA)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_sink_has_a_name_of_letters_and_digits(streams: Streams, name: str) -> None:
    """As a job has."""
    with refused(f"{name!r} is not a sink name", "letters"):
        streams.data.sink_to(name)


@pytest.mark.parametrize("name", ["", "a/b", 1])
def test_a_step_has_a_name_without_a_slash(streams: Streams, name: Any) -> None:
    """Other characters may be in it."""
    with refused(f"{name!r} is not a step name", "slash"):
        streams.keyed.process(name, Plain())


def test_a_stream_takes_no_name_of_penstocks_own(streams: Streams) -> None:
    """The message asks for another."""
    with refused("'dead-letters' is taken", "another stream name"):
        streams.job.control_stream("dead-letters", schema=SCHEMA)


def test_a_sink_takes_no_name_of_penstocks_own(streams: Streams) -> None:
    """The message asks for another."""
    with refused("'dead-letters' is taken", "another sink name"):
        streams.data.sink_to("dead-letters")


def test_two_streams_have_two_names(streams: Streams) -> None:
    """Of data or control."""
    streams.job.data_stream("twice", schema=SCHEMA)
    with refused("two streams named 'twice'", "name of its own"):
        streams.job.data_stream("twice", schema=SCHEMA)


def test_two_transforms_have_two_names(streams: Streams) -> None:
    """If they have names at all."""
    streams.data.filter(bool, name="twice")
    with refused("two transforms named 'twice'"):
        streams.data.filter(bool, name="twice")


def test_two_steps_have_two_names(streams: Streams) -> None:
    """Commands and states are found by them."""
    streams.keyed.process("twice", Plain())
    with refused("two steps named 'twice'"):
        streams.keyed.process("twice", Plain())


def test_two_sinks_have_two_names(streams: Streams) -> None:
    """Each is bound by its own."""
    streams.data.sink_to("twice")
    with refused("two sinks named 'twice'"):
        streams.data.sink_to("twice")


@pytest.mark.parametrize("key_groups", [0, 32769, 1.5])
def test_a_job_has_from_1_to_32768_key_groups(key_groups: Any) -> None:
    """A whole number of them."""
    with refused(f"key_groups is {key_groups}", "integer from 1 to 32768"):
        ps.Job("j", key_groups=key_groups)
