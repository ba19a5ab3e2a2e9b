"""Top-N and deduplication: the changelog gives a batch query's table, after any micro-batch and disturbance."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from table_models import DISTURBANCES, by_key, changed_tables, folded, run_through

import penstock as ps
from penstock.errors import JobDefinitionError, SchemaError
from penstock.tables import top_rows
from penstock.testing import JobHarness

SCHEMA = "town STRING, price INT, name STRING, at BIGINT"
FIELDS = ("town", "price", "name", "at")


def cars() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "town": st.sampled_from(["a", "b", None]),
            "price": st.none() | st.integers(0, 3),
            "name": st.sampled_from(["x", "y", "z"]),
            "at": st.integers(0, 4),
        }
    )


def appended() -> st.SearchStrategy[list[list[dict[str, Any]]]]:
    return st.lists(st.lists(cars(), max_size=8), min_size=1, max_size=4)


def described(*, changes: bool, key_groups: int = 4) -> tuple[ps.Job, ps.DataStream[Any]]:
    job = ps.Job("cars", key_groups=key_groups)
    timed = {"event_time": "at", "watermarks": ps.Watermarks.bounded("1s")}
    if changes:
        return job, job.data_stream("cars", schema=f"{SCHEMA}, op STRING", changelog="op", **timed)
    return job, job.data_stream("cars", schema=SCHEMA, **timed)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row for `price DESC NULLS FIRST, at`, then the other fields."""
    price = row["price"]
    return (price is not None, -(price or 0), row["at"], row["name"])


def rows_after(batches: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return the rows of the table after each batch."""
    rows: list[dict[str, Any]] = []
    found = []
    for batch in batches:
        for change in batch:
            row = {name: change[name] for name in FIELDS}
            rows.append(row) if change.get("op", "+I") in ("+I", "+U") else rows.remove(row)
        found.append(list(rows))
    return found


def by_town(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["town"]].append(row)
    return found


@examples(25)
@given(
    appended() | changed_tables(cars()),
    st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_first_rows_of_each_group(
    batches: list[list[dict[str, Any]]], disturbances: list[str], count: int, ranked: bool
) -> None:
    """Rows are added and removed, with the rank in the output and without."""
    changes = any("op" in row for batch in batches for row in batch)
    job, stream = described(changes=changes)
    rank = "place" if ranked else None
    stream.group_by("town").top("top", count, order_by=["price DESC NULLS FIRST", "at"], rank=rank).sink_to(
        "top", changes="records"
    )
    outputs = run_through(job, "cars", batches, disturbances, "top")
    for rows, output in zip(rows_after(batches), outputs, strict=True):
        want = [
            (*(row[name] for name in FIELDS), *([number] if ranked else []))
            for found in by_town(rows).values()
            for number, row in enumerate(sorted(found, key=place)[:count], 1)
        ]
        assert folded(output) == Counter(want)
        if ranked:
            by_key(output, lambda row: (row[0], row[-1]))


@pytest.mark.parametrize("order", ["random", "falling", "rising", "equal"])
def test_most_rows_of_a_large_batch_are_ruled_out_early(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """The result equals sorting all rows, in any order of arrival, with nulls and ties."""
    monkeypatch.setattr(top_rows, "_PART", 4)
    chance = random.Random(order)
    prices = {
        "random": [chance.choice([None, *range(40)]) for _ in range(600)],
        "falling": list(range(600, 0, -1)),
        "rising": list(range(600)),
        "equal": [3] * 600,
    }[order]
    rows = [
        {
            "town": chance.choice(["a", "b", None]),
            "price": price,
            "name": chance.choice("xyz"),
            "at": number % 5,
        }
        for number, price in enumerate(prices)
    ]
    job, stream = described(changes=False, key_groups=2)
    stream.group_by("town").top("top", 3, order_by=["price DESC NULLS FIRST", "at"]).sink_to(
        "top", changes="records"
    )
    outputs = run_through(job, "cars", [rows[:250], rows[250:]], ["none"], "top")
    for there, output in zip((rows[:250], rows), outputs, strict=True):
        want = [
            tuple(row[name] for name in FIELDS)
            for found in by_town(there).values()
            for row in sorted(found, key=place)[:3]
        ]
        assert folded(output) == Counter(want)


@examples(25)
@given(
    appended() | changed_tables(cars()),
    st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4),
    st.sampled_from(["first", "last"]),
)
def test_one_row_of_each_group_by_event_time(
    batches: list[list[dict[str, Any]]], disturbances: list[str], keep: Any
) -> None:
    """It is the earliest or the latest one, whenever it arrives."""
    changes = any("op" in row for batch in batches for row in batch)
    job, stream = described(changes=changes)
    once = stream.group_by("town").deduplicate("once", keep=keep)
    assert once.changelog_key == ("town",)
    once.sink_to("once", changes="records")
    outputs = run_through(job, "cars", batches, disturbances, "once")

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        at = row["at"] if keep == "first" else -row["at"]
        return (at, row["price"] is not None, row["price"] or 0, row["name"])

    for rows, output in zip(rows_after(batches), outputs, strict=True):
        want = {
            town: tuple(min(found, key=order)[name] for name in FIELDS)
            for town, found in by_town(rows).items()
        }
        assert by_key(output, lambda row: row[0]) == want


@examples(20)
@given(appended(), st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4))
def test_one_row_of_each_group_by_arrival(
    batches: list[list[dict[str, Any]]], disturbances: list[str]
) -> None:
    """The first one is final; the last one replaces its predecessor."""
    job, stream = described(changes=False)
    stream.group_by("town").deduplicate("first", by="arrival").sink_to("first")
    stream.group_by("town").deduplicate("last", keep="last", by="arrival").sink_to("last", changes="records")
    run = JobHarness(job, parallelism=2, strict=True)
    first: dict[Any, Any] = {}
    last: dict[Any, Any] = {}
    for number, batch in enumerate(batches):
        run.send("cars", *batch)
        run.run_batch()
        if disturbances[number % len(disturbances)] == "rescale":
            run.rescale(1 + number % 3)
        for row in batch:
            values = tuple(row[name] for name in FIELDS)
            first.setdefault(row["town"], values)
            last[row["town"]] = values
        found = [tuple(getattr(record, name) for name in FIELDS) for record in run.output("first")]
        assert {row[0]: row for row in found} == first
        assert len(found) == len(first)
        assert by_key(run.output("last"), lambda row: row[0]) == last


def test_upserts_become_a_changelog() -> None:
    """The step keeps the rows, so that later steps know the replaced row."""
    job = ps.Job("customers")
    stream = job.data_stream(
        "customers", schema="id INT, town STRING, op STRING", changelog=ps.Upserts("id", kind="op")
    )
    stream.sink_to("changes", changes="records")
    stream.group_by("town").aggregate("towns", {"n": ps.Aggregate.count()}).sink_to(
        "towns", changes="records"
    )
    run = JobHarness(job, strict=True)
    kinds = []
    for changes in (
        [(1, "a", "+I"), (2, "a", "+I")],
        [(1, "b", "+U")],
        [(1, "b", "-U"), (1, "c", "+U"), (2, "a", "-D"), (3, "c", "-D")],
        [(1, "c", "+U"), (2, "a", "+I")],
    ):
        run.send("customers", *[{"id": i, "town": town, "op": op} for i, town, op in changes])
        found = run.run_batch().output("changes")
        kinds.append(sorted((r.id, r.town, r._change.value) for r in found))
        run.restart()
    assert kinds == [
        [(1, "a", "+I"), (2, "a", "+I")],
        [(1, "a", "-U"), (1, "b", "+U")],
        [(1, "b", "-U"), (1, "c", "+U"), (2, "a", "-D")],
        [(2, "a", "+I")],
    ]
    assert folded(run.output("towns")) == {("c", 1): 1, ("a", 1): 1}


def test_what_cannot_be_ranked_is_refused() -> None:
    """The error has the remedy."""
    job, stream = described(changes=False)
    untimed = job.data_stream("plain", schema="town STRING, tags ARRAY<INT>, op STRING", changelog="op")
    group = stream.group_by("town")
    for call, error, message in (
        (lambda: group.top("t", 0, order_by=["at"]), JobDefinitionError, "at least 1"),
        (lambda: group.top("t", 1, order_by=[]), JobDefinitionError, "needs the fields"),
        (lambda: group.top("t", 1, order_by="at"), JobDefinitionError, "needs the fields"),
        (lambda: group.top("t", 1, order_by=["at +"]), JobDefinitionError, "does not order rows"),
        (lambda: group.top("t", 1, order_by=["when"]), SchemaError, "no field 'when'"),
        (lambda: group.top("t", 1, order_by=["at"], rank="at"), JobDefinitionError, "cannot be the field"),
        (lambda: untimed.group_by().top("t", 1, order_by=["tags"]), JobDefinitionError, "has no order"),
        (
            lambda: stream.group_by("upper(town) AS town").top("t", 1, order_by=["at"]),
            JobDefinitionError,
            "select .* as a field first",
        ),
        (lambda: group.deduplicate("d", keep="any"), JobDefinitionError, "keep is"),  # type: ignore[arg-type]
        (lambda: untimed.group_by("town").deduplicate("d"), JobDefinitionError, "event_time"),
        (
            lambda: untimed.group_by("town").deduplicate("d", by="arrival"),
            JobDefinitionError,
            "have no order of arrival",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
