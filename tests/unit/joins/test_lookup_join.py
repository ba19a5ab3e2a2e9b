"""Lookup joins: keyed and broadcast dimensions, missing matches, waiting, deletions, and failures in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_support import Arrivals, arrivals, outcome_of
from property_examples import examples

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing import JobHarness

FIELDS = ["left.k", "left.v", "left.at", "right.v AS floor"]
SCHEMA = "k STRING, v BIGINT, at BIGINT"


def described(form: str = "control", **options: Any) -> ps.Job:
    """Return a job that looks its records up in a dimension."""
    job = ps.Job("looked-up")
    left = job.data_stream("left", schema=SCHEMA)
    given = {"fields": FIELDS} | options
    if form == "data":
        dimension: Any = job.data_stream("right", schema=SCHEMA)
    else:
        dimension = job.control_stream("right", schema=SCHEMA)
    if form == "broadcast":
        result = left.lookup_join("join", dimension.broadcast(), on=("k", "k"), **given)
    else:
        result = left.key_by("k").lookup_join("join", dimension.key_by("k"), **given)
    result.sink_to("out")
    return job


def records(*rows: tuple[str, int | None]) -> list[dict[str, Any]]:
    """Records of a stream."""
    return [{"k": key, "v": value, "at": 0} for key, value in rows]


@examples(45)
@given(
    arrivals(),
    st.sampled_from(["control", "data", "broadcast"]),
    st.sampled_from([{"how": "inner"}, {"how": "left"}, {"missing": "dead_letter"}]),
    st.booleans(),
)
def test_records_find_the_latest_of_the_dimension(
    come: Arrivals, form: str, options: dict[str, Any], has_deletions: bool
) -> None:
    """The latest row is of the same micro-batch or an earlier one, whatever fails in between."""
    job = described(form, **options, deleted="v IS NULL" if has_deletions else None)
    run, found = outcome_of(job, come)
    expected: Counter[tuple[Any, ...]] = Counter()
    known: dict[str, int | None] = {}
    missing = 0
    for batch in come.batches:
        for key, value, _ in batch["right"]:
            known[key] = value
            if has_deletions and value is None:
                del known[key]
        for row in batch["left"]:
            if row[0] in known:
                expected[(*row, known[row[0]])] += 1
            elif options.get("how") == "left":
                expected[(*row, None)] += 1
            else:
                missing += 1
    assert found == expected
    assert len(run.dead_letters()) == (missing if "missing" in options else 0)


def test_a_record_waits_for_the_dimension() -> None:
    """It waits up to the declared time, also over failures, and is then handled as declared. At the end none
    waits.
    """
    run = JobHarness(described(wait="10s", how="left"))
    run.send("left", *records(("a", 1), ("b", 2)))
    assert run.run_batch().outputs == {}
    assert len(run.state("join", key="a")["left"]) == 1
    run.crash()
    run.advance_clock("6s")
    run.send("right", *records(("a", 7)))
    assert [(one.v, one.floor) for one in run.run_batch().output("out")] == [(1, 7)]
    run.restart()
    run.send("left", *records(("c", 3)))
    run.run_batch()
    run.advance_clock("4s")
    assert [(one.v, one.floor) for one in run.run_batch().output("out")] == [(2, None)]
    run.crash()
    run.rescale(3)
    assert [(one.v, one.floor) for one in run.finish().output("out")] == [(3, None)]
    assert {key: held["left"] for key, held in run.state("join").items()} == {"a": None}


def test_time_goes_on_after_a_lookup() -> None:
    """Records keep their times for later windows; waiting ones too, if they are not late by then."""
    job = ps.Job("looked-up")
    left = job.data_stream(
        "left", schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.bounded("10ms")
    ).key_by("k")
    rooms = job.control_stream("right", schema=SCHEMA).key_by("k")
    result = left.lookup_join("join", rooms, wait="10s", fields=["left.k", "left.at", "right.v"])
    result.key_by("k").window(ps.TumblingWindows("10ms")).count("counts").sink_to("out")
    run = JobHarness(job)
    run.send("left", {"k": "a", "v": 1, "at": 5}, {"k": "b", "v": 1, "at": 17})
    run.run_batch()
    run.send("right", *records(("a", 7), ("b", 8)))
    run.run_batch()
    run.finish()
    found = {(one.k, one.window_start.microsecond // 1000, one.value) for one in run.output("out")}
    assert found == {("a", 0, 1), ("b", 10, 1)}


def test_a_condition_that_is_false_is_no_match() -> None:
    """For both forms of a dimension."""
    for form in ("control", "broadcast"):
        run = JobHarness(described(form, how="left", where="left.v < right.v"))
        run.send("right", *records(("a", 5)))
        run.send("left", *records(("a", 1), ("a", 9)))
        assert [(one.v, one.floor) for one in run.run_batch().output("out")] == [(1, 5), (9, None)], form


@pytest.mark.parametrize(
    ("form", "options", "says"),
    [
        ("control", {"how": "full"}, "'inner', 'left'"),
        ("control", {"missing": "null"}, "is not 'dead_letter'"),
        ("control", {"on": ("k", "k")}, "found by its key"),
        ("broadcast", {"wait": "1s"}, "cannot wait"),
        ("control", {"wait": "0s"}, "at least 1 ms"),
        ("data", {"deleted": "w"}, "There is no field 'w'"),
    ],
)
def test_what_does_not_fit_is_refused(form: str, options: dict[str, Any], says: str) -> None:
    """The error comes when the job is described, and says what to do."""
    with pytest.raises((JobDefinitionError, TypeError), match=says):
        described(form, **options)


def test_dimensions_that_do_not_fit_are_refused() -> None:
    """A keyed one needs a key of its type, a broadcast one fields of the same types and names."""
    job = ps.Job("looked-up")
    left = job.data_stream("left", schema=SCHEMA)
    dimension = job.control_stream("right", schema="k BIGINT, v BIGINT")
    with pytest.raises(JobDefinitionError, match="is keyed, but 'left' is not"):
        left.lookup_join("a", dimension.key_by("k"), fields=FIELDS)
    with pytest.raises(JobDefinitionError, match="differ in type"):
        left.key_by("k").lookup_join("b", dimension.key_by("k"), fields=FIELDS)
    with pytest.raises(JobDefinitionError, match="say which fields are equal"):
        left.lookup_join("c", dimension.broadcast(), fields=FIELDS)
    with pytest.raises(JobDefinitionError, match="differ in type"):
        left.lookup_join("d", dimension.broadcast(), on=("k", "k"), fields=FIELDS)
    with pytest.raises(JobDefinitionError, match="Key the dimension"):
        left.lookup_join("e", dimension, fields=FIELDS)  # type: ignore[arg-type]  # that is the point
