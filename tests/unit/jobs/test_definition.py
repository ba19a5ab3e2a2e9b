"""The job: what is whole passes the check, what has a loose end is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.errors import JobDefinitionError

SCHEMA = "id INT, value DOUBLE"


class Keep(ps.ProcessFunction):
    last = ps.ValueState(float)

    def process_record(self, record: Any, ctx: ps.Context) -> None:
        self.last.set(record.value)


class Steer(ps.ConnectedProcessFunction):
    def process_control(self, record: Any, ctx: ps.Context) -> None:
        pass

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Any]:
        yield record


def nothing(job: ps.Job) -> None:
    pass


def only_control(job: ps.Job) -> None:
    job.control_stream("settings", schema=SCHEMA).sink_to("out")


def no_sink(job: ps.Job) -> None:
    job.data_stream("readings", schema=SCHEMA)


def unread_control(job: ps.Job) -> None:
    job.data_stream("readings", schema=SCHEMA).sink_to("out")
    job.control_stream("settings", schema=SCHEMA)


def keyed_only(job: ps.Job) -> None:
    job.data_stream("readings", schema=SCHEMA).sink_to("out")
    job.data_stream("others", schema=SCHEMA).key_by("id")


def unused_filter(job: ps.Job) -> None:
    readings = job.data_stream("readings", schema=SCHEMA)
    readings.filter(bool, name="hot")
    readings.sink_to("out")


@pytest.mark.parametrize(
    ("describe", "parts"),
    [
        (nothing, ("'j' has no data stream", "job.data_stream(...)")),
        (only_control, ("'j' has no data stream",)),
        (no_sink, ("'j' does nothing", "no step and no sink")),
        (unread_control, ("Nothing reads the stream 'settings'", "remove it")),
        (keyed_only, ("Nothing reads the stream 'others'",)),
        (unused_filter, ("Nothing reads what the filter 'hot'", "the stream that filter returns")),
    ],
)
def test_a_loose_end_is_refused(describe: Callable[[ps.Job], None], parts: tuple[str, ...]) -> None:
    """The message names the job or the stream, and says what to do."""
    job = ps.Job("j")
    describe(job)
    with pytest.raises(JobDefinitionError) as raised:
        job.check()
    assert all(part in str(raised.value) for part in parts), raised.value


def to_sink(job: ps.Job) -> None:
    job.data_stream("readings", schema=SCHEMA).sink_to("out")


def only_state(job: ps.Job) -> None:
    job.data_stream("readings", schema=SCHEMA).key_by("id").process("keep", Keep())


def unused_output(job: ps.Job) -> None:
    settings = job.control_stream("settings", schema=SCHEMA).key_by("id")
    keyed = job.data_stream("readings", schema=SCHEMA).key_by("id").connect(settings)
    keyed.process("steer", Steer(), output=SCHEMA)


def control_to_sink(job: ps.Job) -> None:
    unused_output(job)
    job.control_stream("others", schema=SCHEMA).sink_to("log")


@pytest.mark.parametrize("describe", [to_sink, only_state, unused_output, control_to_sink])
def test_a_whole_job_passes(describe: Callable[[ps.Job], None]) -> None:
    """A job may end in a sink or in state; control records may be logged."""
    job = ps.Job("j")
    describe(job)
    job.check()


@pytest.mark.parametrize("key_groups", [1, 128, 32768])
def test_key_groups_are_kept(key_groups: int) -> None:
    """Any number from 1 to 32768."""
    assert ps.Job("j", key_groups=key_groups).key_groups == key_groups


@pytest.mark.parametrize("name", ["j", "9", "Temperature-Control_2.0", "dead-letters"])
def test_job_names(name: str) -> None:
    """Letters, digits, dots, dashes and underscores, a letter or digit first."""
    assert ps.Job(name).name == name
