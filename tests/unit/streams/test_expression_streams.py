"""Streams with where and select: results, dead letters, event time, keys and settings, in batches and in real time."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing import JobHarness
from penstock.testing.batch_runner import NOW


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Light:
    """A light sensor's reading, at a time in milliseconds since 1970."""

    lamp: str
    level: int
    at: int
    colour: Colour = Colour.RED


def lights(job: ps.Job) -> ps.DataStream[Light]:
    return job.data_stream("lights", schema=Light, event_time="at", watermarks=ps.Watermarks.bounded("1s"))


def light(number: int, lamp: str = "hall", at: int = 0) -> Light:
    return Light(lamp, number, at, Colour.BLUE if number % 2 else Colour.RED)


def test_where_and_select_make_records_from_columns() -> None:
    """Copied fields keep their type, such as an enumeration; computed ones have SQL's type."""
    job = ps.Job("lamps")
    bright = lights(job).where("level > 5 and colour <> 'red'")
    bright.select("lamp", (ps.col("level") * 2).alias("twice"), "colour AS shade").sink_to("out")
    run = JobHarness(job)
    run.send("lights", *(light(number) for number in range(10)))
    found = run.run_batch().output("out")
    assert [(one.lamp, one.twice, one.shade) for one in found] == [
        ("hall", 14, Colour.BLUE),
        ("hall", 18, Colour.BLUE),
    ]


def test_a_record_for_which_an_expression_fails_is_a_dead_letter() -> None:
    """The dead letter names the expression, and other records continue in order."""
    job = ps.Job("lamps")
    lights(job).where("100 / level > 10", name="strong").sink_to("out")
    run = JobHarness(job)
    run.send("lights", light(2), light(0), light(4), light(50))
    assert [one.level for one in run.run_batch().output("out")] == [2, 4]
    (letter,) = run.dead_letters()
    assert letter.reason == "the expression '100 / level > 10' has no value: divide by zero"
    assert letter.step == "transform/strong"
    assert json.loads(letter.raw)["level"] == 0


def test_the_event_time_stays_though_its_field_is_not_selected() -> None:
    """Windows after a selection use the times of the original records."""
    job = ps.Job("lamps")
    slim = lights(job).where("level >= 0").select("lamp", "level + 1 AS more")
    slim.key_by("lamp").window(ps.TumblingWindows("10s")).sum("sums", "more").sink_to("out")
    run = JobHarness(job, parallelism=2)
    run.send("lights", *(light(number, at=1000 * number) for number in range(25)))
    run.run_batch()
    run.finish()
    found = [(one.window_start, one.value) for one in run.output("out")]
    assert [value for _, value in sorted(found)] == [55.0, 155.0, 115.0]


class Total(ps.ProcessFunction):
    """The sum of a lamp so far."""

    total = ps.ValueState(int)

    def process_record(self, record: Any, ctx: ps.Context) -> Any:
        self.total.set((self.total.get() or 0) + record.twice)
        yield Sum(ctx.key, self.total.get() or 0)


@dataclass
class Sum:
    lamp: str
    total: int


def test_a_keyed_stream_keeps_its_key() -> None:
    """This holds for where, and for select if it keeps the key's fields, even renamed."""
    job = ps.Job("lamps")
    keyed = lights(job).key_by("lamp").where("level <> 3").select("lamp AS place", "level * 2 AS twice")
    keyed.process("totals", Total(), output=Sum).sink_to("out")
    run = JobHarness(job, parallelism=2)
    run.send("lights", *(light(number, lamp) for number in range(5) for lamp in ("hall", "attic")))
    run.run_batch()
    last = {one.lamp: one.total for one in run.output("out")}
    assert last == {"hall": 14, "attic": 14}
    with pytest.raises(JobDefinitionError, match="loses the key of the stream: the fields 'lamp'"):
        lights(ps.Job("other")).key_by("lamp").select("level")
    with pytest.raises(JobDefinitionError, match="loses the key of the stream: its function"):
        lights(ps.Job("other")).key_by(lambda one: one.lamp, key_type=str).select("*")


def parameters_job(*, keyed: bool, select: bool = False) -> ps.Job:
    job = ps.Job("lamps", key_groups=4)
    stream: Any = lights(job)
    stream = stream.key_by("lamp") if keyed else stream
    settings = {"limit": ps.Setting(int, 3)}
    if select:
        found = stream.select("lamp", "level - ${limit} AS level", settings=settings, name="above")
    else:
        found = stream.where("level > ${limit}", settings=settings, name="above")
    if keyed:
        found = found.process("on", PassOn(), output="lamp STRING, level INT")
    found.sink_to("out")
    return job


class PassOn(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> Any:
        yield record


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("select", [False, True])
def test_a_parameter_changes_at_one_cut(keyed: bool, select: bool) -> None:
    """A command sets it for all records of its micro-batch, with a receipt; it survives a restart and a crash."""
    run = JobHarness(parameters_job(keyed=keyed, select=select), parallelism=2)
    values = [light(number, lamp) for number in range(8) for lamp in ("hall", "attic")]

    def expected(limit: int) -> list[int]:
        return sorted(n - limit if select else n for n in range(8) for _ in range(2) if select or n > limit)

    def found() -> list[int]:
        return sorted(one.level for one in run.run_batch().output("out"))

    run.send("lights", *values)
    assert found() == expected(3)
    command = run.send_command("set", "above", {"limit": 5})
    run.send("lights", *values)
    assert found() == expected(5)
    assert [receipt.status for receipt in run.receipts(command)][-1] == "APPLIED"
    assert run.settings("above") == {"limit": 5}
    run.crash()
    run.rescale(1)
    run.send("lights", *values)
    assert found() == expected(5)


def test_a_parameter_refuses_what_is_not_of_its_type_or_from_an_event_time() -> None:
    """It is like any setting, but has one value for all records of a micro-batch."""
    run = JobHarness(parameters_job(keyed=False))
    wrong = run.send_command("set", "above", {"limit": "many"})
    dated = run.send_command("set", "above", {"limit": 5}, effective_at=NOW)
    run.run_batch()
    assert "got `str`" in run.receipts(wrong)[-1].reason
    assert "has no history" in run.receipts(dated)[-1].reason
    assert run.settings("above") == {"limit": 3}


@pytest.mark.parametrize(
    ("describe", "sentence"),
    [
        (
            lambda s: s.where("levl > 3", name="bright"),
            "The where 'bright' of the stream 'lights': There is no field",
        ),
        (lambda s: s.where("level > ${limit}"), "There is no parameter ${limit}; declared are: none."),
        (lambda s: s.where("level > ${x}", settings={"x": ps.Setting(int)}), "so it is a step"),
        (
            lambda s: s.where("level > 3", settings={"x": ps.Setting(int)}, name="a"),
            "does not use ${x}. Remove it.",
        ),
        (lambda s: s.where("level > ${x}", settings={"x": 3}, name="a"), "has the setting 'x', which is 3."),
        (
            lambda s: s.where(
                "level > ${process_batch}", settings={"process_batch": ps.Setting(int)}, name="a"
            ),
            "cannot have a setting named 'process_batch'",
        ),
        (
            lambda s: (s.where("level > 1", name="a"), s.where("level > 2", name="a")),
            "two transforms named 'a'",
        ),
        (lambda s: s.where(lambda one: one.level > 3), "is not an expression"),
    ],
)
def test_a_wrong_description_is_refused(describe: Any, sentence: str) -> None:
    """The error comes when the job is described, with the transform's name."""
    with pytest.raises(JobDefinitionError) as caught:
        describe(lights(ps.Job("lamps")))
    assert sentence in str(caught.value)


def test_the_result_must_be_read() -> None:
    """An unused result is refused, since a stream is not changed in place."""
    job = ps.Job("lamps")
    stream = lights(job)
    stream.where("level > 3", name="bright")
    stream.sink_to("out")
    with pytest.raises(JobDefinitionError, match="Nothing reads the result of the where 'bright'"):
        job.check()


@examples(20)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=30),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_an_expression_gives_what_functions_give(
    values: list[tuple[str, int]], parallelism: int, seed: int
) -> None:
    """The result equals that of filter and map, for any number of tasks and order of arrival."""
    job = ps.Job("lamps", key_groups=8)
    stream = lights(job)
    stream.where("12 / level >= 3 and lamp in ('a', 'b')").select("lamp", "level % 3 AS level").sink_to("sql")
    stream.filter(lambda one: 12 / one.level >= 3 and one.lamp in ("a", "b")).map(
        lambda one: Seen(one.lamp, one.level % 3), output=Seen
    ).sink_to("python")
    run = JobHarness(job, parallelism=parallelism, arrival_seed=seed)
    run.send("lights", *(Light(lamp, level, 0) for lamp, level in values))
    batch = run.run_batch()
    assert [(r.lamp, r.level) for r in batch.output("sql")] == [
        (r.lamp, r.level) for r in batch.output("python")
    ]
    assert len(run.dead_letters()) == 2 * sum(level == 0 for _, level in values)


@dataclass
class Seen:
    lamp: str
    level: int
