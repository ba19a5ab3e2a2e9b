"""Group aggregates: the changelog gives a batch query's table, after any micro-batch and disturbance."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from table_models import DISTURBANCES, by_key, changed_tables, folded, run_through

import penstock as ps
from penstock.errors import ExpressionError, JobDefinitionError
from penstock.testing import JobHarness

SCHEMA = "room STRING, floor INT, n BIGINT, price DECIMAL(6, 2), heat DOUBLE, at BIGINT"
AGGREGATES = {
    "rows_of": ps.Aggregate.count(),
    "ns": ps.Aggregate.count("n"),
    "large": ps.Aggregate.count(where="n > 2"),
    "different": ps.Aggregate.count("n", distinct=True),
    "total": ps.Aggregate.sum("n"),
    "different_total": ps.Aggregate.sum("n", distinct=True),
    "mean": ps.Aggregate.avg("n"),
    "paid": ps.Aggregate.sum("price"),
    "mean_price": ps.Aggregate.avg("price", where="n > 1"),
    "heats": ps.Aggregate.sum("heat"),
    "coldest": ps.Aggregate.min("heat"),
    "dearest": ps.Aggregate.max("price"),
    "first_room": ps.Aggregate.first("room", order_by="at"),
    "last_n": ps.Aggregate.last("n", order_by="at"),
    "highest": ps.Aggregate.max("room || 'x'"),
}


def records() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "room": st.sampled_from(["a", "b", None, '"', "\0"]),
            "floor": st.sampled_from([0, 1, None]),
            "n": st.none() | st.integers(0, 4) | st.sampled_from([2**62, -(2**62)]),
            "price": st.none() | st.sampled_from(["1.25", "-0.33", "100.00"]),
            "heat": st.none() | st.sampled_from([0.5, -1.25, 8.0]),
            "at": st.integers(0, 5),
        }
    )


def aggregated(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return all aggregates of some rows."""

    def values(name: str, where: Any = lambda row: True) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None and where(row)]

    def total(found: list[Any]) -> Any:
        return sum(found) if found else None

    ns, prices, heats = values("n"), [Decimal(price) for price in values("price")], values("heat")
    chosen = [Decimal(price) for price in values("price", lambda row: row["n"] is not None and row["n"] > 1)]
    ordered = sorted((row["at"], row["room"]) for row in rows if row["room"] is not None)
    ordered_ns = sorted((row["at"], row["n"]) for row in rows if row["n"] is not None)
    return (
        len(rows),
        len(ns),
        sum(n > 2 for n in ns),
        len(set(ns)),
        in_range(total(ns)),
        in_range(total(list(set(ns)))),
        None if not ns else sum(ns) / len(ns),
        total(prices),
        None
        if not chosen
        else (sum(chosen) / len(chosen)).quantize(Decimal("0.000001"), rounding=ROUND_HALF_UP),
        total(heats),
        min(heats, default=None),
        max(prices, default=None),
        ordered[0][1] if ordered else None,
        ordered_ns[-1][1] if ordered_ns else None,
        max((row["room"] + "x" for row in rows if row["room"] is not None), default=None),
    )


def in_range(value: Any) -> Any:
    """Return null instead of a sum beyond BIGINT."""
    return None if value is None or not -(2**63) <= value < 2**63 else value


def expected(rows: list[dict[str, Any]], *keys: str) -> dict[Any, tuple[Any, ...]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return {key: (*key, *aggregated(found)) for key, found in groups.items()}


def job_of(keys: tuple[str, ...], *, changes: bool) -> ps.Job:
    job = ps.Job("groups", key_groups=4)
    if changes:
        stream = job.data_stream("rooms", schema=f"{SCHEMA}, op STRING", changelog="op")
    else:
        stream = job.data_stream("rooms", schema=SCHEMA)
    stream.group_by(*keys).aggregate("groups", AGGREGATES).sink_to("groups", changes="records")
    return job


def without_letters(job: ps.Job, batches: list[list[Any]], disturbances: list[str]) -> list[list[Any]]:
    """Run without strict mode, since sums beyond BIGINT are dead letters."""
    run = JobHarness(job, parallelism=2)
    found = []
    for number, batch in enumerate(batches):
        run.send("rooms", *batch)
        run.run_batch()
        kind = disturbances[number % len(disturbances)]
        if kind == "crash":
            run.crash()
        elif kind == "restart":
            run.restart()
        elif kind == "rescale":
            run.rescale(3 if run.runner.plan.parallelism != 3 else 1)
        assert {letter.reason.partition(" of the group")[0] for letter in run.dead_letters()} <= {
            "the aggregate 'total'",
            "the aggregate 'different_total'",
        }
        found.append(run.output("groups"))
    return found


@examples(25)
@given(
    st.lists(st.lists(records(), max_size=8), min_size=1, max_size=4),
    st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4),
    st.sampled_from([(), ("room",), ("floor",), ("room", "floor"), ("heat",), ("price", "at")]),
)
def test_aggregates_of_appended_records(
    batches: list[list[dict[str, Any]]], disturbances: list[str], keys: tuple[str, ...]
) -> None:
    """After each micro-batch the changes give the table of a batch query."""
    outputs = without_letters(job_of(keys, changes=False), batches, disturbances)
    rows: list[dict[str, Any]] = []
    for batch, output in zip(batches, outputs, strict=True):
        rows += batch
        found = by_key(output, lambda row: row[: len(keys)])
        want = expected(rows, *keys)
        assert found == {tuple(map(typed, key)): tuple(map(typed, row)) for key, row in want.items()}


def typed(value: Any) -> Any:
    return (
        Decimal(value) if isinstance(value, str) and value.replace(".", "").lstrip("-").isdigit() else value
    )


@examples(25)
@given(
    changed_tables(records()),
    st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4),
    st.sampled_from([(), ("room",), ("room", "floor")]),
)
def test_aggregates_of_changes(
    batches: list[list[dict[str, Any]]], disturbances: list[str], keys: tuple[str, ...]
) -> None:
    """Removed rows leave their groups exactly, and an empty group is removed."""
    outputs = without_letters(job_of(keys, changes=True), batches, disturbances)
    rows: list[dict[str, Any]] = []
    for batch, output in zip(batches, outputs, strict=True):
        for change in batch:
            row = {name: value for name, value in change.items() if name != "op"}
            rows.append(row) if change["op"] in ("+I", "+U") else rows.remove(row)
        found = by_key(output, lambda row: row[: len(keys)])
        want = expected(rows, *keys)
        assert found == {key: tuple(map(typed, row)) for key, row in want.items()}


def test_a_group_emits_once_per_micro_batch_and_only_if_its_result_differs() -> None:
    """Three records give one change, and a record that changes no result gives none."""
    job = ps.Job("best")
    stream = job.data_stream("rooms", schema=SCHEMA)
    stream.group_by("room").aggregate("best", {"best": ps.Aggregate.max("n")}).sink_to(
        "best", changes="records"
    )
    run = JobHarness(job, strict=True)
    run.send("rooms", *[{"room": "a", "n": n, "at": 0} for n in (1, 3, 2)])
    assert [str(record) for record in run.run_batch().output("best")] == [
        "Record(room='a', best=3, _change=<Change.INSERT: '+I'>)"
    ]
    run.send("rooms", {"room": "a", "n": 2, "at": 0})
    assert run.run_batch().output("best") == []
    run.send("rooms", {"room": "a", "n": 4, "at": 0}, {"room": "a", "n": 1, "at": 0})
    assert [(record.best, record._change.value) for record in run.run_batch().output("best")] == [
        (3, "-U"),
        (4, "+U"),
    ]


def test_a_sum_beyond_its_type_is_null_with_a_dead_letter_until_it_fits() -> None:
    """The stored sum is exact throughout."""
    job = ps.Job("sums")
    stream = job.data_stream("rooms", schema="n BIGINT, op STRING", changelog="op")
    stream.group_by().aggregate("sums", {"total": ps.Aggregate.sum("n")}).sink_to("sums", changes="upserts")
    run = JobHarness(job)
    run.send("rooms", {"n": 2**63 - 1, "op": "+I"}, {"n": 5, "op": "+I"})
    assert [record.total for record in run.run_batch().output("sums")] == [None]
    assert [letter.reason for letter in run.dead_letters()] == [
        "the aggregate 'total' of the group is beyond int64; it is null until it fits again"
    ]
    run.send("rooms", {"n": 2**63 - 1, "op": "-D"})
    assert [record.total for record in run.run_batch().output("sums")] == [5]
    assert len(run.dead_letters()) == 1


def test_sums_of_doubles_take_back_infinities_and_nan() -> None:
    """Infinities and NaN are counted instead of added."""
    job = ps.Job("sums")
    stream = job.data_stream("rooms", schema="x DOUBLE, op STRING", allow_nan=True, changelog="op")
    stream.group_by().aggregate("sums", {"total": ps.Aggregate.sum("x")}).sink_to("sums", changes="upserts")
    run = JobHarness(job, strict=True)
    steps = [(1.5, "+I"), (math.inf, "+I"), (-math.inf, "+I"), (math.inf, "-D"), (-math.inf, "-D")]
    found = []
    for value, kind in steps:
        run.send("rooms", type("X", (), {"x": value, "op": kind})())
        found += [record.total for record in run.run_batch().output("sums")]
    assert str(found) == "[1.5, inf, nan, -inf, 1.5]"


def test_a_group_expires_and_begins_anew() -> None:
    """An expired group emits nothing by itself."""
    job = ps.Job("expiring")
    stream = job.data_stream("rooms", schema=SCHEMA)
    counts = stream.group_by("room").aggregate(
        "counts", {"n": ps.Aggregate.count()}, ttl=ps.Ttl(dt.timedelta(hours=1), time="processing")
    )
    counts.sink_to("counts", changes="records")
    run = JobHarness(job, strict=True)
    found = []
    for wait in ("0s", "59m", "61m"):
        run.advance_clock(wait)
        run.send("rooms", {"room": "a", "at": 1})
        found += [(record.n, record._change.value) for record in run.run_batch().output("counts")]
        run.restart()
    assert found == [(1, "+I"), (1, "-U"), (2, "+U"), (1, "+I")]


def test_aggregates_of_aggregates() -> None:
    """A group's changelog is another group's input: how many rooms have a count."""
    job = ps.Job("counts")
    rooms = (
        job.data_stream("rooms", schema=SCHEMA)
        .group_by("room")
        .aggregate("rooms", {"n": ps.Aggregate.count()})
    )
    rooms.group_by("n").aggregate("counts", {"rooms": ps.Aggregate.count()}).sink_to(
        "counts", changes="records"
    )
    outputs = run_through(
        job,
        "rooms",
        [[{"room": room, "at": 0} for room in batch] for batch in ("aab", "bc", "cd")],
        DISTURBANCES,
        "counts",
    )
    assert folded(outputs[0]) == {(2, 1): 1, (1, 1): 1}
    assert folded(outputs[1]) == {(2, 2): 1, (1, 1): 1}
    assert folded(outputs[2]) == {(2, 3): 1, (1, 1): 1}


def test_first_and_last_of_appended_records_by_arrival_and_by_event_time() -> None:
    """Without event time the order is that of arrival."""
    aggregates = {"begin": ps.Aggregate.first("n"), "end": ps.Aggregate.last("n")}
    for event_time, want in ((None, (3, 2)), ("at", (1, 3))):
        job = ps.Job("ends")
        stream = job.data_stream("rooms", schema="n INT, at BIGINT", event_time=event_time)
        stream.group_by().aggregate("ends", aggregates).sink_to("ends", changes="upserts")
        run = JobHarness(job, strict=True)
        for n, at in ((3, 30), (None, 5), (1, 10), (2, 20)):
            run.send("rooms", {"n": n, "at": at})
            run.run_batch()
        end = run.output("ends")[-1]
        assert (end.begin, end.end) == want


def test_what_does_not_fit_is_refused_when_described() -> None:
    """Each error has the remedy."""
    job = ps.Job("wrong")
    stream = job.data_stream("rooms", schema="room STRING, tags ARRAY<STRING>, op STRING", changelog="op")
    other = job.data_stream("others", schema="room STRING")
    counts = other.group_by("room").aggregate("counts", {"n": ps.Aggregate.count()})
    for call, error, message in (
        (lambda: stream.group_by("tags"), JobDefinitionError, "cannot be grouped by 'tags'"),
        (lambda: stream.group_by("romo"), ExpressionError, "did you mean 'room'"),
        (lambda: other.group_by("room").aggregate("x", {}), JobDefinitionError, "needs aggregates by name"),
        (
            lambda: other.group_by("room").aggregate("x", {"room": ps.Aggregate.count()}),
            JobDefinitionError,
            "has the name of a field of the group",
        ),
        (
            lambda: other.group_by().aggregate("x", {"s": ps.Aggregate.sum("room")}),
            JobDefinitionError,
            "sum needs a number",
        ),
        (
            lambda: stream.group_by().aggregate("x", {"s": ps.Aggregate.first("room")}),
            JobDefinitionError,
            r"order_by=\"at\"",
        ),
        (
            lambda: stream.group_by().aggregate("x", {"s": ps.Aggregate.approx_count_distinct("room")}),
            JobDefinitionError,
            "distinct=True",
        ),
        (lambda: ps.Aggregate.sum(None), JobDefinitionError, "needs an argument"),  # type: ignore[arg-type]
        (lambda: counts.sink_to("counts"), JobDefinitionError, 'changes="upserts"'),
        (
            lambda: counts.sink_to("counts", changes="upserts", key=["n"]),
            JobDefinitionError,
            "identified by room",
        ),
        (lambda: other.sink_to("others", changes="records"), JobDefinitionError, "only appends"),
        (lambda: stream.sink_to("rooms", changes="upserts"), JobDefinitionError, "are not known"),
        (lambda: counts.map(str, output="x STRING"), JobDefinitionError, "select"),
        (lambda: counts.key_by("room").count("x"), JobDefinitionError, "as_records"),
        (
            lambda: counts.key_by("room").window(ps.CountWindows(2)).count("x"),
            JobDefinitionError,
            "is a changelog, which updates and deletes rows",
        ),
        (lambda: counts.union(other.select("room", "1 AS n")), JobDefinitionError, "as_changelog"),
        (
            lambda: counts.where("n > ${x}", settings={"x": ps.Setting(int, 1)}, name="w"),
            JobDefinitionError,
            "as_records",
        ),
        (lambda: counts.as_changelog(), JobDefinitionError, "a changelog already"),
        (lambda: other.as_records(), JobDefinitionError, "is not a changelog"),
        (lambda: counts.as_records("n"), JobDefinitionError, "name another one"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_kinds_that_are_none_are_dead_letters() -> None:
    """They list the valid kinds."""
    job = ps.Job("kinds")
    stream = job.data_stream("rooms", schema="room STRING, op STRING", changelog="op")
    stream.sink_to("rooms", changes="records")
    run = JobHarness(job)
    run.send("rooms", {"room": "a", "op": "+I"}, {"room": "b", "op": "x"}, {"room": "c"})
    assert [record.room for record in run.run_batch().output("rooms")] == ["a"]
    assert [letter.reason for letter in run.dead_letters()] == [
        f"the field 'op' is {kind}, which is not a kind of change; use +I, -U, +U, -D"
        for kind in ("'x'", "None")
    ]


def test_changes_through_conditions_selections_and_unions() -> None:
    """Conditions apply to each change; upserts delete rows that no longer satisfy them."""
    job = ps.Job("through")
    stream = job.data_stream("rooms", schema="room STRING")
    counts = stream.group_by("room").aggregate("counts", {"n": ps.Aggregate.count()})
    few = counts.where("n < 3").select("room AS name", "n * 2 AS twice")
    assert few.changelog_key == ("name",)
    few.sink_to("few", changes="upserts")
    both = few.union(stream.select("room AS name", "CAST(0 AS BIGINT) AS twice").as_changelog())
    assert both.is_changelog
    assert both.changelog_key is None
    both.group_by().aggregate("all", {"n": ps.Aggregate.count(), "s": ps.Aggregate.sum("twice")}).sink_to(
        "all", changes="records"
    )
    run = JobHarness(job, strict=True)
    found = []
    for rooms in ("a", "ab", "ab", "c"):
        run.send("rooms", *[{"room": room} for room in rooms])
        found.append([(r.name, r.twice, r._change.value) for r in run.run_batch().output("few")])
    assert found[0] == [("a", 2, "+U")]
    assert sorted(found[1]) == [("a", 4, "+U"), ("b", 2, "+U")]
    assert sorted(found[2]) == [("a", 4, "-D"), ("b", 4, "+U")]
    assert folded(run.output("all")) == {(8, 6): 1}


def test_groups_by_times_dates_bytes_and_booleans() -> None:
    """The key gives back the original value."""
    schema = "b BINARY, d DATE, t TIMESTAMP, yes BOOLEAN, x DOUBLE"
    values = {
        "b": b"\x00\xff",
        "d": dt.date(2024, 2, 29),
        "t": dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC),
        "yes": True,
        "x": -0.0,
    }
    rows = [values, values | {"x": 0.0}, dict.fromkeys(values), values | {"yes": False}]
    for keys in ((*values,), ("yes",), ("b",), ("d",), ("t",), ("x",)):
        job = ps.Job("types")
        stream = job.data_stream("rooms", schema=schema)
        stream.group_by(*keys).aggregate("n", {"n": ps.Aggregate.count()}).sink_to("n", changes="records")
        run = JobHarness(job, strict=True)
        run.send("rooms", *[type("R", (), row)() for row in rows])
        run.run_batch()
        want: dict[Any, int] = defaultdict(int)
        for row in rows:
            want[tuple(row[key] for key in keys)] += 1
        assert folded(run.output("n")) == {(*key, n): 1 for key, n in want.items()}
