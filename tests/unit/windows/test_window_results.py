"""Results of windows that aggregate: the fields of the key, the bounds of the window, and the result."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest
from domains import Sale

import penstock as ps
from penstock.errors import SchemaError
from penstock.testing.batch_runner import NOW, BatchRunner


@dataclass
class Sales:
    """All sales."""

    amount: float
    count: int


@dataclass
class Shop:
    """A result with a field of the key."""

    shop: str


class Total(ps.AggregateFunction[Sale, list[float], Any]):
    """Collects amounts; subclasses define the result."""

    def create_accumulator(self) -> list[float]:
        return []

    def add(self, value: Sale, accumulator: list[float]) -> list[float]:
        return [*accumulator, value.amount]


class AsRecord(Total):
    def get_result(self, accumulator: list[float]) -> Sales:
        return Sales(sum(accumulator), len(accumulator))


class AsNumber(Total):
    def get_result(self, accumulator: list[float]) -> float:
        return sum(accumulator)


class AsNumberPerhaps(Total):
    def get_result(self, accumulator: list[float]) -> float | None:
        return None if len(accumulator) < 2 else sum(accumulator)


class AsList(Total):
    def get_result(self, accumulator: list[float]) -> list[float]:
        return accumulator


class AsShop(Total):
    def get_result(self, accumulator: list[float]) -> Shop:
        return Shop("")


SALES = [Sale("a", 1, 2.0), Sale("b", 1, 5.0), Sale("a", 1, 3.0)]
BOUNDS = {"window_start": NOW, "window_end": NOW + dt.timedelta(seconds=2)}


def results(*key: str, function: Total, windows: ps.WindowAssigner | None = None) -> list[dict[str, Any]]:
    """Return the results of the sales at the end of the stream, ordered by key."""
    job = ps.Job("sales")
    sales = job.data_stream("sales", schema=Sale, event_time=ps.INGESTION_TIME)
    windowed = sales.key_by(*key).window(windows or ps.TumblingWindows("2s"))
    windowed.trigger(ps.EventTimeTrigger()).aggregate("total", function).sink_to("totals")
    running = BatchRunner(job, parallelism=2)
    running.run({"sales": [("", SALES)]})
    written = running.run({}, ends=True).sinks["totals"]
    rows = [row for batch, _ in written.batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: [row[name] for name in key])


def test_a_result_that_is_a_record_gives_its_fields() -> None:
    """They follow the key's fields and the bounds."""
    found = results("shop", function=AsRecord())
    assert found == [
        {"shop": "a", **BOUNDS, "amount": 5.0, "count": 2},
        {"shop": "b", **BOUNDS, "amount": 5.0, "count": 1},
    ]
    assert list(found[0]) == ["shop", "window_start", "window_end", "amount", "count"]


def test_a_result_that_is_a_value_is_the_field_value() -> None:
    """Such a value is a number, an optional one, or a list."""
    assert [row["value"] for row in results("shop", function=AsNumber())] == [5.0, 5.0]
    assert [row["value"] for row in results("shop", function=AsNumberPerhaps())] == [5.0, None]
    assert [row["value"] for row in results("shop", function=AsList())] == [[2.0, 3.0], [5.0]]


def test_a_key_of_several_fields_gives_each() -> None:
    (first, _) = results("shop", "day", function=AsNumber())
    assert first == {"shop": "a", "day": 1, **BOUNDS, "value": 5.0}


def test_the_global_window_has_no_bounds() -> None:
    found = results("shop", function=AsNumber(), windows=ps.GlobalWindows())
    assert found[0] == {"shop": "a", "window_start": None, "window_end": None, "value": 5.0}


def test_a_result_with_a_field_of_the_key_is_refused() -> None:
    with pytest.raises(SchemaError, match="Step 'total': There are two fields named 'shop'; rename one"):
        results("shop", function=AsShop())
