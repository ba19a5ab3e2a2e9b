"""Unions of data streams in whole jobs: the records' streams, event time, and equality with a single stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from domains import Visit
from replays import run_and_replay

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Seen:
    user: str
    stream: str
    number: int
    count: int


class Count(ps.ProcessFunction):
    """Counts the records of a key; raises at negative numbers."""

    count = ps.ValueState(int)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Seen]:
        if visit.number < 0:
            raise ValueError("negative")
        self.count.set((self.count.get() or 0) + 1)
        yield Seen(visit.user, ctx.stream, visit.number, self.count.get() or 0)


class CountBatch(ps.ProcessFunction):
    """Emits for each batch its stream."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        if min(records.column("number").to_pylist()) < 0:
            raise ValueError("negative")
        rows = records.num_rows
        return pa.RecordBatch.from_pydict(
            {
                "user": records.column("user"),
                "stream": pa.array([ctx.stream] * rows),
                "number": records.column("number"),
                "count": pa.array([rows] * rows),
            }
        )


class Gather(ps.ProcessFunction):
    """Without a key: keeps the numbers of each part."""

    numbers = ps.OperatorListState(int)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Seen]:
        if visit.number < 0:
            raise ValueError("negative")
        self.numbers.add(visit.number)
        yield Seen(str(ctx.key_group), ctx.stream, visit.number, len(self.numbers.get()))


class Sorted(ps.ProcessFunction):
    """Sends visits with odd numbers to a side output."""

    side_outputs: ClassVar[dict[str, Any]] = {"odd/ones": Visit}

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Visit]:
        if visit.number % 2:
            ctx.side_output("odd/ones", visit)
        else:
            yield visit


def is_even(visit: Visit) -> bool:
    return visit.number % 2 == 0


def as_it_is(visit: Visit) -> Visit:
    return visit


def web_and_app(**given: Any) -> tuple[ps.Job, Any, Any]:
    job = ps.Job("shop", key_groups=4)
    web, app = (job.data_stream(name, schema=Visit, **given) for name in ("web", "app"))
    return job, web, app


@pytest.mark.parametrize("partitions", [1, 3])
def test_records_of_several_streams_share_the_state_of_their_key(partitions: int) -> None:
    """Within a micro-batch they come stream by stream, in the order of the union, with their stream's name."""
    job, web, app = web_and_app()
    web.union(app).key_by("user").process("count", Count()).sink_to("seen")
    running = BatchRunner(job, parallelism=partitions)
    inputs = {
        "app": [("p", [Visit("a", 0, 1), Visit("b", 0, 2)])],
        "web": [("p", [Visit("a", 0, 3), Visit("a", 0, 4)])],
    }
    for seed, before in ((0, 0), (1, 3)):
        seen = running.run(inputs, seed=seed).output("seen")
        assert sorted(seen, key=lambda one: (one.user, one.count)) == [
            Seen("a", "web", 3, before + 1),
            Seen("a", "web", 4, before + 2),
            Seen("a", "app", 1, before + 3),
            Seen("b", "app", 2, 1 + before // 3),
        ]


def test_a_batch_is_of_one_stream() -> None:
    job, web, app = web_and_app()
    web.union(app).key_by("user").process("count", CountBatch(), output=Seen).sink_to("seen")
    inputs = {name: [("p", [Visit("a", 0, 1), Visit("a", 0, 2)])] for name in ("app", "web")}
    seen = BatchRunner(job).run(inputs).output("seen")
    assert seen == [Seen("a", name, number, 2) for name in ("web", "app") for number in (1, 2)]


def test_branches_of_one_stream_come_one_after_the_other() -> None:
    """Their records do not mix, for any division into blocks."""
    job = ps.Job("shop", key_groups=1)
    web = job.data_stream("web", schema=Visit)
    everything = web.map(as_it_is, output=Visit).union(web.filter(is_even))
    everything.key_by("user").process("count", Count()).sink_to("seen")
    visits = [Visit("a", 0, number) for number in range(6)]
    running = BatchRunner(job, parallelism=2)
    inputs = {"web": [("p", visits[:3]), ("p", visits[3:]), ("q", visits)]}
    numbers = [one.number for one in run_and_replay(running, inputs).output("seen")]
    assert numbers == [*range(6), *range(6), 0, 2, 4, 0, 2, 4]


def test_unions_of_unions_go_by_their_order() -> None:
    job = ps.Job("shop", key_groups=1)
    streams = {name: job.data_stream(name, schema=Visit) for name in "abcd"}
    inner = streams["c"].union(streams["a"]).map(as_it_is, output=Visit)
    streams["d"].union(inner, streams["b"]).key_by("user").process("count", Count()).sink_to("seen")
    inputs = {name: [("p", [Visit("a", 0, 1)])] for name in "abcd"}
    seen = BatchRunner(job).run(inputs).output("seen")
    assert [one.stream for one in seen] == ["d", "c", "a", "b"]


def test_a_source_and_what_steps_emit_are_one_stream() -> None:
    """Records straight from the source wait for those of earlier steps; side outputs are streams as well."""
    job, web, app = web_and_app()
    sorted_ = app.key_by("user").process("sort", Sorted())
    again = sorted_.key_by("user").process("again", Sorted())
    web.union(again, sorted_.side_output("odd/ones")).key_by("user").process("count", Count()).sink_to("seen")
    running = BatchRunner(job, parallelism=2)
    assert [[node.step for node in level] for level in running.plan.levels()] == [
        ["sort"],
        ["again"],
        ["count"],
    ]
    visits = [Visit("a", 0, number) for number in range(4)]
    seen = running.run({"web": [("p", visits)], "app": [("p", visits)]}).output("seen")
    assert [(one.stream, one.number, one.count) for one in seen] == [
        ("web", 0, 1),
        ("web", 1, 2),
        ("web", 2, 3),
        ("web", 3, 4),
        ("again", 0, 5),
        ("again", 2, 6),
        ("sort.odd/ones", 1, 7),
        ("sort.odd/ones", 3, 8),
    ]


def test_a_union_goes_to_several_places() -> None:
    """It goes through stateless functions, into sinks with message keys, and into steps."""
    job, web, app = web_and_app()
    sorted_ = app.key_by("user").process("sort", Sorted())
    union = web.union(sorted_)
    union.filter(is_even).sink_to("even")
    union.key_by("user").process("count", Count()).sink_to("seen")
    running = BatchRunner(job, keyed_sinks=["even"])
    visits = [Visit("a", 0, number) for number in range(3)]
    result = running.run({"web": [("p", visits)], "app": [("p", visits)]})
    assert sorted(one.number for one in result.output("even")) == [0, 0, 2, 2]
    assert sorted(result.sinks["even"].keys, key=str) == [None, None, b"a", b"a"]
    assert len(result.output("seen")) == 5


def test_places_of_different_streams_do_not_clash() -> None:
    """Without a key, records are partitioned by stream and partition, as without a union."""
    inputs = {
        "web": [("0", [Visit("", 0, number) for number in (1, 2)])],
        "app": [("0", [Visit("", 0, number) for number in (3, 4)])],
    }
    job, web, app = web_and_app()
    web.union(app).process("gather", Gather()).sink_to("seen")
    running = BatchRunner(job, parallelism=2)
    found = running.run(inputs).output("seen") + running.run(inputs).output("seen")
    for name, numbers in (("web", [1, 2]), ("app", [3, 4])):
        alone = ps.Job("shop", key_groups=4)
        alone.data_stream(name, schema=Visit).process("gather", Gather()).sink_to("seen")
        (expected, _) = BatchRunner(alone).run({name: inputs[name]}).output("seen")
        mine = [one for one in found if one.stream == name]
        assert [one.number for one in mine] == numbers * 2
        assert {one.user for one in mine} == {expected.user}


@pytest.mark.parametrize("function", [Count(), CountBatch(), Gather()])
@pytest.mark.parametrize("raw_streams", [(), ("web",)])
def test_a_dead_letter_tells_from_where_its_record_really_came(
    function: Any, raw_streams: tuple[str, ...]
) -> None:
    """It has the stream, partition and position there, and the bytes if its source has them."""
    job, web, app = web_and_app()
    renamed = app.key_by("user").process("sort", Sorted()).map(as_it_is, output=Visit)
    union = web.union(renamed)
    step = union if isinstance(function, Gather) else union.key_by("user")
    step.process("step", function, output=Seen).sink_to("seen")
    running = BatchRunner(job, raw_streams=raw_streams)
    result = running.run(
        {
            "web": [("w/1", [Visit("a", 0, 1), Visit("a", 0, -1)])],
            "app": [("p", [Visit("a", 0, -2), Visit("b", 0, 4)])],
        }
    )
    from_web, from_sort = sorted(result.dead_letters, key=lambda letter: letter.stream, reverse=True)
    assert (from_web.stream, from_web.partition, from_web.offset, from_web.step) == ("web", "w/1", 1, "step")
    assert from_web.raw == b'{"user":"a","at":0,"number":-1}'
    assert (from_sort.stream, from_sort.offset, from_sort.step) == ("sort", 0, "step")
    assert len(result.output("seen")) == 2


def test_letters_on_the_way_through_a_union_tell_from_where_as_well() -> None:
    job, web, app = web_and_app()
    keyed = (
        web.union(app)
        .map(lambda visit: Visit(1 // visit.number, 0), output=Visit, name="divide")
        .key_by("user")
    )
    keyed.process("count", Count()).sink_to("seen")
    result = BatchRunner(job).run({name: [("p", [Visit("a", 0, 0)])] for name in ("web", "app")})
    assert sorted((letter.stream, letter.step) for letter in result.dead_letters) == [
        ("app", "transform/divide"),
        ("web", "transform/divide"),
    ]


class Steered(ps.ConnectedProcessFunction):
    """Passes records on whose number is at least the minimum set for their key and for all."""

    least = ps.ValueState(int)
    least_of_all = ps.BroadcastState(str, int)

    def process_control(self, control: Visit, ctx: ps.Context) -> None:
        if ctx.stream == "everywhere":
            self.least_of_all.put("", control.number)
        else:
            self.least.set(control.number)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Seen]:
        least = max(self.least.get() or 0, self.least_of_all.get("") or 0)
        if visit.number >= least:
            yield Seen(visit.user, ctx.stream, visit.number, least)


def test_a_union_is_steered_as_any_stream() -> None:
    """Control records come before the data of all its streams."""
    job, web, app = web_and_app()
    everywhere, users = (job.control_stream(name, schema=Visit) for name in ("everywhere", "users"))
    keyed = web.union(app).key_by("user").connect(everywhere.broadcast(), users.key_by("user"))
    keyed.process("steered", Steered()).sink_to("seen")
    running = BatchRunner(job, parallelism=2)
    visits = [("p", [Visit(user, 0, number) for user in "ab" for number in range(4)])]
    inputs = {
        "app": visits,
        "web": visits,
        "users": [("p", [Visit("b", 0, 3)])],
        "everywhere": [("p", [Visit("", 0, 2)])],
    }
    seen = running.run(inputs).output("seen")
    assert sorted((one.user, one.stream, one.number) for one in seen) == [
        ("a", "app", 2),
        ("a", "app", 3),
        ("a", "web", 2),
        ("a", "web", 3),
        ("b", "app", 3),
        ("b", "web", 3),
    ]


def test_what_waits_for_a_paused_step_still_tells_from_where_it_is() -> None:
    job, web, app = web_and_app()
    web.union(app).key_by("user").process("count", Count()).sink_to("seen")
    running = BatchRunner(job, parallelism=2)
    command = '{{"id": "{}", "kind": "{}", "target": {{"step": "count"}}}}'
    running.run({"commands": [("c", [command.format(1, "pause").encode()])]})
    inputs = {
        name: [("p", [Visit("a", 0, number), Visit("a", 0, -1)])] for name, number in (("app", 1), ("web", 2))
    }
    assert not running.run(inputs).output("seen")
    result = running.run({"commands": [("c", [command.format(2, "resume").encode()])]})
    assert result.output("seen") == [Seen("a", "web", 2, 1), Seen("a", "app", 1, 2)]
    assert [(letter.stream, letter.partition, letter.offset) for letter in result.dead_letters] == [
        ("web", "p", 1),
        ("app", "p", 1),
    ]


def test_all_records_of_a_union_are_in_the_same_windows() -> None:
    job = ps.Job("shop", key_groups=4)
    marks = ps.Watermarks.monotonous()
    web, app = (
        job.data_stream(name, schema=Visit, event_time="at", watermarks=marks) for name in ("web", "app")
    )
    web.union(app).window_all(ps.TumblingWindows("10ms")).sum("total", "number").sink_to("totals")
    running = BatchRunner(job, parallelism=2)
    inputs = {
        name: [("p", [Visit(name, at, 10 * at + place) for at in (1, 12)])]
        for place, name in enumerate(("web", "app"))
    }
    (total,) = running.run(inputs).output("totals")
    assert total.value == 10 + 11
