"""Names in a job, and its key groups: invalid ones are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from described_streams import SCHEMA, Plain, Streams, refused

import penstock as ps


@pytest.mark.parametrize("name", ["", "my job", 5])
def test_a_job_has_a_name_of_letters_and_digits(name: Any) -> None:
    """The message says which characters are valid."""
    with refused(f"{name!r} is not a job name", "letters"):
        ps.Job(name)


def test_a_stream_has_a_name_that_can_be_a_part_of_a_path(streams: Streams) -> None:
    """A slash is refused."""
    with refused("'a/b' is not a stream name", "letters"):
        streams.job.data_stream("a/b", schema=SCHEMA)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_sink_has_a_name_of_letters_and_digits(streams: Streams, name: str) -> None:
    """The rules are those for jobs."""
    with refused(f"{name!r} is not a sink name", "letters"):
        streams.data.sink_to(name)


@pytest.mark.parametrize("name", ["", "a/b", 1])
def test_a_step_has_a_name_without_a_slash(streams: Streams, name: Any) -> None:
    """Other characters are valid."""
    with refused(f"{name!r} is not a step name", "slash"):
        streams.keyed.process(name, Plain())


@pytest.mark.parametrize(
    ("kind", "describe"),
    [
        ("stream", lambda streams: streams.job.control_stream("dead-letters", schema=SCHEMA)),
        ("sink", lambda streams: streams.data.sink_to("dead-letters")),
    ],
)
def test_a_name_of_penstocks_own_is_taken(
    streams: Streams, kind: str, describe: Callable[[Streams], object]
) -> None:
    """The message asks for another."""
    with refused("'dead-letters' is taken", f"another {kind} name"):
        describe(streams)


@pytest.mark.parametrize(
    ("kind", "describe"),
    [
        ("streams", lambda streams: streams.job.data_stream("twice", schema=SCHEMA)),
        ("transforms", lambda streams: streams.data.filter(bool, name="twice")),
        ("steps", lambda streams: streams.keyed.process("twice", Plain())),
        ("sinks", lambda streams: streams.data.sink_to("twice")),
    ],
)
def test_a_name_is_given_once(streams: Streams, kind: str, describe: Callable[[Streams], object]) -> None:
    """It is unique within a kind of thing; another kind may use it, too."""
    describe(streams)
    with refused(f"two {kind} named 'twice'", "name of its own"):
        describe(streams)


@pytest.mark.parametrize("key_groups", [0, 32769, 1.5])
def test_a_job_has_from_1_to_32768_key_groups(key_groups: Any) -> None:
    """The number must be an integer."""
    with refused(f"key_groups is {key_groups}", "integer from 1 to 32768"):
        ps.Job("j", key_groups=key_groups)
