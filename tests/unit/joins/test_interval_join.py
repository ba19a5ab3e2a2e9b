"""Interval joins: pairs, unmatched records, late ones and state, against plain joins of the same records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_support import SCHEMA, Arrivals, arrivals, joined, keyed, outcome_of
from property_examples import examples

import penstock as ps
from penstock.errors import ExpressionError, JobDefinitionError
from penstock.testing import JobHarness

FIELDS = [
    "left.k AS lk",
    "left.v AS lv",
    "left.at AS la",
    "right.k AS rk",
    "right.v AS rv",
    "right.at AS ra",
]


def described(**options: Any) -> ps.Job:
    """Return a job that joins two streams, `left` and `right`."""
    job = ps.Job("joined")
    given = {"lower": "-10ms", "upper": "15ms", "fields": FIELDS} | options
    result = keyed(job, "left").interval_join("join", keyed(job, "right"), **given)
    result.sink_to("out")
    result.side_output("late_left").sink_to("late-left")
    result.side_output("late_right").sink_to("late-right")
    return job


def records(*rows: tuple[str, int | None, int]) -> list[dict[str, Any]]:
    """Records of a stream."""
    return [dict(zip(("k", "v", "at"), row, strict=True)) for row in rows]


@examples(60)
@given(
    arrivals(),
    st.sampled_from(["inner", "left", "right", "full"]),
    st.tuples(st.integers(-30, 30), st.integers(0, 30)),
    st.booleans(),
)
def test_a_join_is_that_of_plain_rows(
    come: Arrivals, how: Any, bounds: tuple[int, int], has_condition: bool
) -> None:
    """This holds for any order within the lateness, any micro-batches, and failures in between."""
    lower, upper = bounds[0], bounds[0] + bounds[1]
    job = described(
        lower=f"{lower}ms",
        upper=f"{upper}ms",
        how=how,
        where="left.v < right.v" if has_condition else None,
    )
    run, found = outcome_of(job, come)

    def matches(one: Any, other: Any) -> bool:
        is_near = one[0] == other[0] and lower <= other[2] - one[2] <= upper
        if not has_condition:
            return is_near
        return bool(is_near and one[1] is not None and other[1] is not None and one[1] < other[1])

    assert found == joined(come.rows("left"), come.rows("right"), how, matches)
    assert not run.dead_letters()
    assert not run.state("join")


def test_a_late_record_goes_to_its_side_output() -> None:
    """It is not joined, even if its partner is still stored; each side has an output for late records."""
    run = JobHarness(described(how="full"))
    run.send("left", *records(("a", 1, 100)))
    run.send("right", *records(("a", 2, 101)))
    run.run_batch()
    run.send("left", *records(("a", 3, 79), ("a", 4, 80)))
    run.send("right", *records(("a", 5, 78)))
    outcome = run.run_batch()
    assert [one.v for one in run.output("late-left")] == [3]
    assert [one.v for one in run.output("late-right")] == [5]
    assert sum(count for what, _, _, count, _ in outcome.reports if what == "late") == 2
    run.finish()
    assert sorted((one.lv, one.rv) for one in run.output("out") if one.lv) == [(1, 2), (4, None)]


def test_state_stays_flat_over_a_day_of_event_time() -> None:
    """Rows are removed once the watermark has passed them, also for keys without new records."""
    run = JobHarness(described(lower="-1m", upper="1m", how="left"))
    sizes = []
    for minute in range(0, 24 * 60, 60):
        at = minute * 60_000
        keys = [f"k{minute}-{number}" for number in range(5)]
        run.send("left", *records(*((key, 1, at + number) for number, key in enumerate(keys))))
        run.send("right", *records(*((key, 2, at + number) for number, key in enumerate(keys[:3]))))
        run.run_batch()
        sizes.append(len(run.state("join")))
    assert max(sizes[2:]) <= 10
    run.finish()
    assert run.state("join") == {}


def test_a_parameter_of_the_condition_is_a_setting() -> None:
    """A command changes it at a cut, for all later pairs."""
    run = JobHarness(
        described(where="left.v + right.v > ${least}", settings={"least": ps.Setting(int, 3)}, how="inner")
    )
    run.send("left", *records(("a", 1, 10)))
    run.send("right", *records(("a", 2, 11), ("a", 3, 12)))
    assert [one.rv for one in run.run_batch().output("out")] == [3]
    run.send_command("set", "join", {"least": 1})
    run.send("right", *records(("a", 1, 13)))
    assert [one.rv for one in run.run_batch().output("out")] == [1]
    run.crash()


def test_a_pair_without_a_value_is_a_dead_letter() -> None:
    """It has both records and the reason; other pairs continue, and neither record counts as matched by it."""
    job = described(fields=["left.v", "100 / right.v AS per"])
    run = JobHarness(job)
    run.send("left", *records(("a", 1, 10)))
    run.send("right", *records(("a", 0, 11), ("a", 4, 12)))
    outcome = run.run_batch()
    assert [(one.v, one.per) for one in outcome.output("out")] == [(1, 25.0)]
    (letter,) = outcome.dead_letters
    assert b'"v":0' in letter.raw
    assert "zero" in letter.reason.lower()


def test_event_time_of_pairs_is_in_time_for_later_windows() -> None:
    """A pair has the later time, an unmatched record is emitted once that is certain; none is late downstream."""
    job = ps.Job("joined")
    result = keyed(job, "left").interval_join(
        "join", keyed(job, "right"), lower="0ms", upper="50ms", how="left", fields=["left.k", "right.v"]
    )
    counts = result.key_by("k").window(ps.TumblingWindows("10ms")).count("counts")
    counts.sink_to("out")
    counts.side_output("late").sink_to("late")
    run = JobHarness(job)
    run.send("left", *records(("a", 1, 10), ("b", 2, 12)))
    run.send("right", *records(("a", 3, 31)))
    run.run_batch()
    run.send("left", *records(("z", 1, 200)))
    run.send("right", *records(("z", 3, 200)))
    run.run_batch()
    run.finish()
    starts = {(one.k, one.window_start.microsecond // 1000, one.value) for one in run.output("out")}
    assert starts == {("a", 30, 1), ("b", 60, 1), ("z", 200, 1)}
    assert run.output("late") == []


def test_a_stream_joined_with_itself() -> None:
    """Both sides are the same records."""
    job = ps.Job("joined")
    stream = keyed(job, "left")
    stream.interval_join(
        "join", stream, lower="1ms", upper="10ms", fields=["a.v AS v", "b.v AS w"], aliases=("a", "b")
    ).sink_to("out")
    run = JobHarness(job)
    run.send("left", *records(("k", 1, 10), ("k", 2, 15), ("k", 3, 40), ("l", 4, 16)))
    run.run_batch()
    assert [(one.v, one.w) for one in run.output("out")] == [(1, 2)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lower": "5ms", "upper": "1ms"}, "Swap them"),
        ({"how": "outer"}, "'inner', 'left', 'right', 'full'"),
        ({"fields": None}, "both sides have the field 'k'"),
        ({"fields": ["v"]}, "Both sides have the field 'v'; write left.v or right.v"),
        ({"fields": ["left.w"]}, "There is no field 'left.w'; did you mean 'left.v'?"),
        ({"where": "left.v"}, "a condition is BOOLEAN"),
        ({"aliases": ("one", "one")}, "not two different names"),
        ({"settings": {"least": ps.Setting(int, 3)}}, "does not use ${least}"),
        ({"lower": "soon"}, "lower is 'soon'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], says: str) -> None:
    """The error comes when the job is described, and says what to do."""
    with pytest.raises((JobDefinitionError, ExpressionError)) as failure:
        described(**options)
    assert says in str(failure.value)


def test_sides_that_do_not_fit_are_refused() -> None:
    """Refused are different key types, and streams without watermarks or keys."""
    job = ps.Job("joined")
    left = keyed(job, "left")
    other = job.data_stream("other", schema=SCHEMA)
    bounds: dict[str, Any] = {"lower": "0s", "upper": "1s", "fields": ["left.v"]}
    with pytest.raises(JobDefinitionError, match="not a keyed stream"):
        left.interval_join("a", other, **bounds)
    with pytest.raises(JobDefinitionError, match="no event time"):
        left.interval_join("b", other.key_by("k"), **bounds)
    with pytest.raises(JobDefinitionError, match="differ in type"):
        left.interval_join("c", keyed(job, "right", "k BIGINT, v BIGINT, at BIGINT"), **bounds)


def test_records_of_a_join_have_no_control_version() -> None:
    """Neither side's version would be right for the pair."""
    job = ps.Job("joined")
    bounds: dict[str, Any] = {"lower": "0s", "upper": "1s", "fields": ["left.v"]}
    pairs = keyed(job, "left").interval_join("join", keyed(job, "right"), **bounds)
    with pytest.raises(JobDefinitionError, match="is a join, whose records have no control version"):
        pairs.stamp_control_version()


def test_all_fields_of_both_sides_are_the_default() -> None:
    """`*` or `right.*` selects those of both or of one side."""
    job = ps.Job("joined")
    left = keyed(job, "left")
    right = job.data_stream(
        "right",
        schema="name STRING, price DOUBLE, since TIMESTAMP",
        event_time="since",
        watermarks=ps.Watermarks.bounded("1s"),
    ).key_by("name")
    bounds: dict[str, Any] = {"lower": "0s", "upper": "1s"}
    everything = left.interval_join("a", right, how="left", **bounds)
    assert everything.record_type.field_names == ("k", "v", "at", "name", "price", "since")
    assert everything.record_type.field("price").nullable
    some = left.interval_join("b", right, fields=["k", "right.*"], **bounds)
    assert some.record_type.field_names == ("k", "name", "price", "since")
