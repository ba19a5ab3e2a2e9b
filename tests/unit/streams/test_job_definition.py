"""The job: a complete description passes the check, an incomplete one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.errors import JobDefinitionError, SchemaError
from penstock.streams.graph import SourceNode

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
        (unused_filter, ("Nothing reads the result of the filter 'hot'", "the stream that filter returns")),
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
    """A job may end in a sink or in state; control records may go to a sink."""
    job = ps.Job("j")
    describe(job)
    job.check()


@pytest.mark.parametrize("key_groups", [1, 128, 32768])
def test_key_groups_are_kept(key_groups: int) -> None:
    """Numbers from 1 to 32768 are valid."""
    assert ps.Job("j", key_groups=key_groups).key_groups == key_groups


@pytest.mark.parametrize("name", ["j", "9", "Temperature-Control_2.0", "dead-letters"])
def test_job_names(name: str) -> None:
    """They have letters, digits, dots, dashes and underscores, and start with a letter or digit."""
    assert ps.Job(name).name == name


FIVE = ps.Watermarks.bounded("5s")
ONE = ps.Watermarks.bounded("1s")
AT = "id INT, at TIMESTAMP, sent BIGINT"


@pytest.mark.parametrize(
    ("job", "stream", "time", "watermarks"),
    [
        ({}, {}, None, None),
        ({"event_time": "at"}, {}, "at", None),
        ({"event_time": "at", "watermarks": FIVE}, {}, "at", FIVE),
        ({"event_time": "at", "watermarks": FIVE}, {"event_time": "sent"}, "sent", FIVE),
        ({"event_time": "at", "watermarks": FIVE}, {"watermarks": ONE}, "at", ONE),
        ({"event_time": "at", "watermarks": FIVE}, {"watermarks": None}, "at", None),
        ({"event_time": "at", "watermarks": FIVE}, {"event_time": None}, None, None),
        ({"event_time": "at", "watermarks": FIVE}, {"schema": SCHEMA}, None, None),
        ({"watermarks": FIVE}, {}, None, None),
        ({"watermarks": FIVE}, {"event_time": "at"}, "at", FIVE),
        ({"event_time": ps.INGESTION_TIME}, {}, ps.INGESTION_TIME, ps.Watermarks.monotonous()),
        ({"event_time": ps.INGESTION_TIME}, {"event_time": None}, None, None),
        ({"event_time": ps.INGESTION_TIME}, {"event_time": "at", "watermarks": ONE}, "at", ONE),
        ({"event_time": ps.INGESTION_TIME}, {"event_time": "at"}, "at", None),
        (
            {"watermarks": FIVE},
            {"event_time": ps.INGESTION_TIME},
            ps.INGESTION_TIME,
            ps.Watermarks.monotonous(),
        ),
    ],
)
def test_a_stream_has_its_own_time_or_that_of_the_job(
    job: dict[str, Any], stream: dict[str, Any], time: str | None, watermarks: ps.Watermarks | None
) -> None:
    """A stream without a declaration inherits the job's, if its schema has the field."""
    described = ps.Job("j", **job)
    described.data_stream("readings", **{"schema": AT, **stream})
    node = described.graph.nodes["source/readings"]
    assert isinstance(node, SourceNode)
    assert (node.time, node.watermarks) == (time, watermarks)


def test_control_streams_have_no_time_of_the_job() -> None:
    """Their effective times must be declared by the stream."""
    job = ps.Job("j", event_time="at", watermarks=FIVE)
    job.control_stream("settings", schema=AT)
    (node,) = job.graph.sources()
    assert (node.time, node.watermarks) == (None, None)


def test_windows_go_by_the_time_of_the_job() -> None:
    """They work as with a stream's own; so do settings and states."""
    job = ps.Job("j", event_time="at", watermarks=FIVE)
    readings = job.data_stream("readings", schema=AT)
    readings.key_by("id").window(ps.TumblingWindows("1m")).count("counts").sink_to("out")
    job.check()


@pytest.mark.parametrize(
    ("job", "stream", "error", "said"),
    [
        ({"event_time": 5}, {}, JobDefinitionError, "The job has event_time=5; pass the name of a field"),
        ({}, {"event_time": 5}, JobDefinitionError, "Stream 'readings' has event_time=5; pass the name"),
        (
            {"watermarks": "5s"},
            {},
            JobDefinitionError,
            "The job has watermarks='5s'; pass a strategy such as",
        ),
        (
            {},
            {"event_time": "at", "watermarks": "5s"},
            JobDefinitionError,
            "Stream 'readings' has watermarks='5s'",
        ),
        (
            {"event_time": ps.INGESTION_TIME, "watermarks": FIVE},
            {},
            JobDefinitionError,
            "The job has watermarks and ps.INGESTION_TIME, whose watermarks follow the clock. Remove watermarks=.",
        ),
        ({}, {"watermarks": FIVE}, JobDefinitionError, "has watermarks but no field with the event time"),
        (
            {"event_time": "at"},
            {"event_time": None, "watermarks": FIVE},
            JobDefinitionError,
            "has watermarks but no field with the event time",
        ),
        (
            {"event_time": "name"},
            {"schema": "id INT, name STRING"},
            SchemaError,
            "and cannot be a time; use a timestamp or an integer of milliseconds. The job declares it for all",
        ),
        ({}, {"event_time": "nothing"}, SchemaError, "has no field 'nothing'"),
    ],
)
def test_a_time_that_cannot_be_is_refused(
    job: dict[str, Any], stream: dict[str, Any], error: type[Exception], said: str
) -> None:
    """The error comes at the description, and names the stream or the job."""
    with pytest.raises(error) as raised:
        ps.Job("j", **job).data_stream("readings", **{"schema": AT, **stream})
    assert said in str(raised.value)


def test_a_time_that_no_stream_has_is_refused() -> None:
    """It is likely misspelt; the message lists the existing fields."""
    job = ps.Job("j", event_time="att")
    job.data_stream("readings", schema=AT).sink_to("out")
    job.data_stream("others", schema=SCHEMA).sink_to("other-out")
    with pytest.raises(
        JobDefinitionError,
        match=r"none of its data streams has that field\. Their fields are at, id, sent, value",
    ):
        job.check()
