"""As-of joins: versions by event time, deletions, late versions and state, against a plain search of the
versions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_support import Arrivals, arrivals, keyed, outcome_of
from property_examples import examples

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing import JobHarness

FIELDS = ["left.k AS k", "left.v AS v", "left.at AS at", "right.v AS found", "right.at AS since"]


def described(**options: Any) -> ps.Job:
    """Return a job that joins records with versions."""
    job = ps.Job("joined")
    given = {"fields": FIELDS} | options
    result = keyed(job, "left").as_of_join("join", keyed(job, "right"), **given)
    result.sink_to("out")
    result.side_output("late_left").sink_to("late")
    return job


def records(*rows: tuple[str, int | None, int]) -> list[dict[str, Any]]:
    """Return records of a stream."""
    return [dict(zip(("k", "v", "at"), row, strict=True)) for row in rows]


@examples(60)
@given(arrivals(), st.sampled_from(["inner", "left"]), st.booleans(), st.booleans())
def test_a_join_finds_the_version_in_force(
    come: Arrivals, how: Any, has_deletions: bool, has_condition: bool
) -> None:
    """This holds for any order within the lateness, any micro-batches, and failures in between."""
    job = described(
        how=how,
        deleted="v IS NULL" if has_deletions else None,
        where="left.v <= right.v" if has_condition else None,
    )
    run, found = outcome_of(job, come)
    expected: Counter[tuple[Any, ...]] = Counter()
    versions = come.rows("right")
    for one in come.rows("left"):
        # Of several versions with one time, the last to arrive counts.
        mine = [other for other in versions if other[0] == one[0] and other[2] <= one[2]]
        latest = max(enumerate(mine), key=lambda entry: (entry[1][2], entry[0]), default=(0, None))[1]
        if latest is not None and has_deletions and latest[1] is None:
            latest = None
        if latest is not None and has_condition:
            is_true = one[1] is not None and latest[1] is not None and one[1] <= latest[1]
            latest = latest if is_true else None
        if latest is not None:
            expected[(*one, latest[1], latest[2])] += 1
        elif how == "left":
            expected[(*one, None, None)] += 1
    assert found == expected
    for held in run.state("join").values():
        assert held["left"] is None
        assert len(held["right"]) == 1


def test_a_record_waits_for_versions_that_may_still_come() -> None:
    """It is emitted when both streams' watermark has passed its time, with the versions that have arrived."""
    run = JobHarness(described())
    run.send("right", *records(("a", 1, 0)))
    run.send("left", *records(("a", 7, 50)))
    assert run.run_batch().outputs == {}
    run.send("left", *records(("a", 8, 90)))
    run.send("right", *records(("b", 0, 60), ("a", 2, 49)))
    assert run.run_batch().outputs == {}
    run.send("right", *records(("b", 0, 75)))
    assert [(one.v, one.found) for one in run.run_batch().output("out")] == [(7, 2)]
    assert [row["record"]["v"] for row in run.state("join", key="a")["right"]] == [2]


def test_a_late_version_holds_from_then_on() -> None:
    """Late records go to the side output; a late version still becomes the latest one."""
    run = JobHarness(described(how="left"))
    run.send("left", *records(("a", 1, 100)))
    run.send("right", *records(("b", 1, 100)))
    run.run_batch()
    run.send("left", *records(("a", 2, 70)))
    run.send("right", *records(("a", 5, 10)))
    run.run_batch()
    run.finish()
    assert [(one.v, one.found) for one in run.output("out")] == [(1, 5)]
    assert [one.v for one in run.output("late")] == [2]


def test_state_stays_flat_while_versions_come() -> None:
    """One version of each key remains; keys whose last version is a deletion are removed."""
    run = JobHarness(described(deleted="v IS NULL"))
    for minute in range(0, 24 * 60, 30):
        at = minute * 60_000
        run.send("right", *records(*((f"k{number}", minute, at + number) for number in range(5))))
        run.send("right", *records((f"gone{minute}", 1, at), (f"gone{minute}", None, at + 7)))
        run.send("left", *records(("k1", 1, at + 9), (f"gone{minute}", 1, at + 9)))
        run.run_batch()
    state = run.state("join")
    assert set(state) == {*(f"k{number}" for number in range(5)), "gone1410"}
    run.finish()
    held = run.state("join")
    assert {key: len(found["right"]) for key, found in held.items()} == {f"k{n}": 1 for n in range(5)}
    assert len(run.output("out")) == 48


def test_what_an_as_of_join_does_not_have_is_refused() -> None:
    """Versions are not emitted without records, and `deleted` must be a condition on versions."""
    with pytest.raises(JobDefinitionError, match="'inner', 'left'"):
        described(how="full")
    with pytest.raises(JobDefinitionError, match="deleted: There is no field 'w'"):
        described(deleted="w IS NULL")
