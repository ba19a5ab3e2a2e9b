"""Describing unions: which streams can be combined, and the errors for others."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.streams.graph import Port, UnionNode
from penstock.streams.stream import DataStream

SCHEMA = "page STRING, at BIGINT"
MARKS = ps.Watermarks.monotonous()


class Kind(enum.Enum):
    TEA = "tea"


class OtherKind(enum.Enum):
    MILK = "milk"


def class_of(kind: type[enum.Enum]) -> type:
    return make_dataclass("Sold", [("what", kind)])


class Silent(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> None:
        pass


class Passing(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Any]:
        yield record


class Shop:
    """A job with streams of several kinds, for valid and invalid unions."""

    def __init__(self) -> None:
        self.job = ps.Job("shop")
        self.web = self.job.data_stream("web", schema=SCHEMA, event_time="at", watermarks=MARKS)
        self.app = self.job.data_stream("app", schema=SCHEMA, event_time="at", watermarks=MARKS)
        self.untimed = self.job.data_stream("untimed", schema=SCHEMA)
        self.unmarked = self.job.data_stream("unmarked", schema=SCHEMA, event_time="at")
        self.arriving = self.job.data_stream("arriving", schema=SCHEMA, event_time=ps.INGESTION_TIME)
        self.control = self.job.control_stream("prices", schema=SCHEMA)

    def stream(self, schema: Any, name: str = "other") -> DataStream:
        return self.job.data_stream(name, schema=schema)


def test_a_union_is_a_stream_of_its_own() -> None:
    """It has a name, the type and the event time of its streams, and its inputs."""
    shop = Shop()
    union = shop.web.union(shop.app)
    assert (union.name, union.record_type, union.origin.time) == ("union-1", shop.web.record_type, "at")
    assert union.has_watermarks
    again = union.filter(lambda record: True).union(shop.web, name="twice")
    assert shop.job.graph.nodes["union/twice"] == UnionNode(
        "union/twice", "twice", (Port("transform/filter-1"), Port("source/web"))
    )
    assert [origin.id for origin in shop.job.graph.origins(again.port)] == ["source/web", "source/app"]
    assert [origin.id for origin in shop.job.graph.origins(shop.web.port)] == ["source/web"]
    assert shop.web.union(shop.app).name == "union-3"


def test_streams_without_event_time_can_be_one() -> None:
    shop = Shop()
    assert not shop.untimed.union(shop.stream(SCHEMA)).has_watermarks
    timeless = shop.unmarked.map(lambda record: record, output="page STRING")
    assert timeless.union(shop.stream("page STRING", "more")).origin.time is None


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda s: s.web.union(), "union needs at least one other stream: web.union(more)"),
        (lambda s: s.web.union(s.web), "'web' is in a union twice"),
        (lambda s: s.web.union(s.app).union(s.web), "'web' is in a union twice"),
        (lambda s: s.web.union(s.app, s.app), "'app' is in a union twice"),
        (lambda s: s.web.union(Shop().app), "'app' belongs to another job"),
        (
            lambda s: s.web.union(s.control),
            "'prices' is a control stream, but a union is for data streams. connect takes",
        ),
        (lambda s: s.control.union(s.web), "'prices' is a control stream"),
        (lambda s: s.web.union(s.app.key_by("page")), "Unite the stream 'app' before it is keyed"),
        (lambda s: s.web.union("app"), "union takes data streams, not 'app'"),
        (
            lambda s: s.untimed.union(s.stream("page STRING")),
            "different types: Record(page: string, at: int64) and Record(page: string). Convert them to one type first",
        ),
        (
            lambda s: s.untimed.union(s.stream("page STRING, at BIGINT NOT NULL")),
            "different types: the field 'at' of Record may be null in only one of them",
        ),
        (
            lambda s: s.stream(class_of(Kind), "tea").union(s.stream(class_of(OtherKind), "milk")),
            "different types: the field 'what' of Sold is <enum 'Kind'> and <enum 'OtherKind'>",
        ),
        (
            lambda s: s.web.union(s.untimed),
            "'web' and 'untimed' of a union differ in event time: that of 'web' is 'at', and 'untimed' has none",
        ),
        (
            lambda s: s.web.union(s.arriving),
            "that of 'web' is 'at', and that of 'arriving' is the ingestion time",
        ),
        (
            lambda s: s.unmarked.union(s.app),
            "The stream 'app' of a union has watermarks, but 'unmarked' has none",
        ),
        (
            lambda s: s.web.union(s.app.process("silent", Silent())),
            "Step 'silent' emits nothing",
        ),
        (
            lambda s: s.web.process("silent", Silent()).union(s.app),
            "Step 'silent' emits nothing",
        ),
        (
            lambda s: [s.web.union(s.app, name="all"), s.web.union(s.app, name="all")],
            "The job has two unions named 'all'",
        ),
        (
            lambda s: s.web.union(s.app).key_by("nothing"),
            "The stream 'union-1' cannot be keyed: Record has no field 'nothing'",
        ),
        (
            lambda s: s.web.union(s.app).broadcast(),
            "'union-1' is not a control stream",
        ),
        (
            lambda s: (
                s.untimed.union(s.stream(SCHEMA)).key_by("page").window(ps.TumblingWindows("1m")).count("n")
            ),
            "Step 'n' has event-time windows, but the records of 'union-1' have no event time",
        ),
    ],
)
def test_what_cannot_be_one_is_refused(describe: Callable[[Shop], Any], message: str) -> None:
    with pytest.raises(JobDefinitionError) as raised:
        describe(Shop())
    assert message in str(raised.value)


def test_a_stream_is_stamped_before_it_is_united() -> None:
    shop = Shop()
    made = shop.untimed.process("step", Passing(), output=SCHEMA)
    made.union(shop.stream(SCHEMA))
    with pytest.raises(JobDefinitionError, match="'step' is stamped after it was used"):
        made.stamp_control_version()


def test_a_union_that_nobody_reads_is_refused() -> None:
    job = ps.Job("shop")
    web, app = (job.data_stream(name, schema=SCHEMA) for name in ("web", "app"))
    web.sink_to("pages")
    union = web.union(app, name="visits")
    with pytest.raises(JobDefinitionError, match="Nothing reads the union 'visits' of the job 'shop'"):
        job.check()
    union.sink_to("visits")
    job.check()


def test_a_protobuf_message_is_kept_when_all_streams_have_it() -> None:
    job = ps.Job("shop")
    one, two = (job.data_stream(name, schema=Int64Value) for name in ("one", "two"))
    plain = job.data_stream("plain", schema="value BIGINT", protobuf=Int64Value)
    other = job.data_stream("other", schema="value BIGINT")
    assert one.union(two).origin.protobuf == one.origin.protobuf
    assert plain.union(other).origin.protobuf is None
