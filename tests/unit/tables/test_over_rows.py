"""OVER aggregates: each row once, as in a batch query, for any order of arrival."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from table_models import DISTURBANCES, disturb

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing import JobHarness

SCHEMA = "name STRING, price INT, at BIGINT"
AGGREGATES = {
    "n": ps.Aggregate.count(),
    "total": ps.Aggregate.sum("price"),
    "mean": ps.Aggregate.avg("price * 1.0", where="price > 1"),
    "low": ps.Aggregate.min("price"),
    "different": ps.Aggregate.count("price", distinct=True),
    "newest": ps.Aggregate.last("price"),
}


def described(rows: int | None, range_: str | None, bound: str = "20ms") -> ps.Job:
    job = ps.Job("prices", key_groups=4)
    stream = job.data_stream(
        "prices", schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.bounded(bound)
    )
    over = stream.group_by("name").over("over", AGGREGATES, rows=rows, range=range_)
    over.sink_to("over")
    over.side_output("late").sink_to("late")
    return job


def prices() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", None]),
            "price": st.none() | st.integers(0, 3),
            "at": st.integers(0, 19),
        }
    )


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["at"], row["price"] is not None, row["price"] or 0)


def expected(rows: list[dict[str, Any]], count: int | None, range_ms: int | None) -> list[tuple[Any, ...]]:
    """Return all rows with the aggregates of their frames."""
    groups = defaultdict(list)
    for row in sorted(rows, key=place):
        groups[row["name"]].append(row)
    found = []
    for group in groups.values():
        for number, row in enumerate(group):
            if count is not None:
                frame = group[max(0, number - count) : number + 1]
            else:
                first = -1 if range_ms is None else row["at"] - range_ms
                frame = [one for one in group if first <= one["at"] <= row["at"]]
            values = [one["price"] for one in frame if one["price"] is not None]
            above = [value for value in values if value > 1]
            found.append(
                (
                    *(row[name] for name in ("name", "price", "at")),
                    len(frame),
                    sum(values) if values else None,
                    sum(above) / len(above) if above else None,
                    min(values, default=None),
                    len(set(values)),
                    values[-1] if values else None,
                )
            )
    return sorted(found, key=repr)


def values_of(records: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(record, name) for name in record.__struct_fields__) for record in records]


@examples(25)
@given(
    st.lists(st.lists(prices(), max_size=8), min_size=1, max_size=4),
    st.lists(st.sampled_from(DISTURBANCES), min_size=1, max_size=4),
    st.sampled_from([(0, None), (1, None), (3, None), (None, 0), (None, 4), (None, None)]),
)
def test_rows_with_aggregates_of_those_before_them(
    batches: list[list[dict[str, Any]]], disturbances: list[str], frame: tuple[int | None, int | None]
) -> None:
    """Times are out of order by less than the watermark's delay, so no row is late."""
    count, range_ms = frame
    job = described(count, None if range_ms is None else f"{range_ms}ms")
    run = JobHarness(job, parallelism=2, strict=True)
    for number, batch in enumerate(batches):
        run.send("prices", *[row | {"at": row["at"] + 10 * number} for row in batch])
        run.run_batch()
        disturb(run, disturbances[number % len(disturbances)])
    run.finish()
    rows = [row | {"at": row["at"] + 10 * number} for number, batch in enumerate(batches) for row in batch]
    assert run.output("late") == []
    found = values_of(run.output("over"))
    assert sorted(found, key=repr) == expected(rows, count, range_ms)
    for name in ("a", "b", None):
        times = [row[2] for row in found if row[0] == name]
        assert times == sorted(times)


def test_late_rows_go_aside_and_old_ones_are_forgotten() -> None:
    """A group's state has what later frames need; a range's rows are removed once their time has passed."""
    job = described(None, "5ms", "0ms")
    run = JobHarness(job, strict=True)
    run.send("prices", {"name": "a", "price": 1, "at": 10}, {"name": "a", "price": 2, "at": 11})
    run.run_batch()
    run.send("prices", {"name": "a", "price": 9, "at": 9}, {"name": "b", "price": 2, "at": 13})
    run.run_batch()
    assert [(record.price, record.at) for record in run.output("late")] == [(9, 9)]
    assert [(row[1], row[3]) for row in values_of(run.output("over"))] == [(1, 1), (2, 2)]
    assert set(run.state("over")) == {"a", "b"}
    run.advance_watermark("prices", 30)
    run.run_batch()
    run.run_batch()
    assert len(run.output("over")) == 3
    assert run.state("over") == {}


def test_only_some_rows_before_are_kept() -> None:
    """Their number is the frame's."""
    run = JobHarness(described(2, None, "0ms"), strict=True)
    for at in range(5):
        run.send("prices", {"name": "a", "price": at, "at": at})
        run.run_batch()
    (state,) = run.state("over").values()
    assert [row["at"] for row in state["past"]] == [2, 3]
    assert [row["at"] for row in state["waiting"]] == [4]


def test_what_cannot_wait_is_refused() -> None:
    """The error has the remedy."""
    job = ps.Job("wrong")
    untimed = job.data_stream("untimed", schema=SCHEMA)
    timed = job.data_stream("timed", schema=SCHEMA, event_time="at")
    marked = job.data_stream("marked", schema=SCHEMA, event_time="at", watermarks=ps.Watermarks.bounded("1s"))
    counts = {"n": ps.Aggregate.count()}
    for call, message in (
        (lambda: untimed.group_by("name").over("o", counts), "event time"),
        (lambda: timed.group_by("name").over("o", counts), "waits for the watermark"),
        (lambda: marked.as_changelog().group_by("name").over("o", counts), "as_records"),
        (lambda: marked.group_by("name").over("o", counts, rows=1, range="1s"), "both rows and range"),
        (lambda: marked.group_by("name").over("o", counts, rows=-1), "at least 0"),
        (lambda: marked.group_by("name").over("o", {"at": ps.Aggregate.count()}), "the name of a field"),
        (lambda: marked.select("name").group_by("name").over("o", counts), "in a field"),
        (
            lambda: marked.group_by("name").over("p", counts).stamp_control_version(),
            "have no control version",
        ),
    ):
        with pytest.raises(JobDefinitionError, match=message):
            call()
