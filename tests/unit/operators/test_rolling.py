"""Rolling aggregates: after each record what plain Python makes of all records of its key so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Sale:
    shop: str
    day: int
    amount: int | None
    note: str = ""


FOLDS: dict[str, Callable[[list[int]], float | None]] = {
    "sum": lambda values: float(sum(values)),
    "min": lambda values: float(min(values)) if values else None,
    "max": lambda values: float(max(values)) if values else None,
    "mean": lambda values: sum(values) / len(values) if values else None,
}
SALES = st.builds(Sale, st.sampled_from("ab"), st.integers(1, 2), st.none() | st.integers(-50, 50))


def job_of(aggregate: str, *key: str) -> BatchRunner:
    job = ps.Job("j", key_groups=2)
    sales = job.data_stream("sales", schema=Sale).key_by(*key)
    getattr(sales, aggregate)("step", "amount").sink_to("out")
    return BatchRunner(job)


@given(st.lists(st.lists(SALES, max_size=5), max_size=4), st.sampled_from(sorted(FOLDS)))
def test_each_record_gives_the_aggregate_so_far(batches: Any, aggregate: str) -> None:
    """Also over micro-batches; a key of several fields is emitted as these."""
    job = job_of(aggregate, "shop", "day")
    seen: dict[Any, list[int]] = {}
    for sales in batches:
        expected = []
        for sale in sales:
            values = seen.setdefault((sale.shop, sale.day), [])
            values += [] if sale.amount is None else [sale.amount]
            expected.append((sale.shop, sale.day, FOLDS[aggregate](values)))
        found = job.run({"sales": [("s", sales)]} if sales else {}).output("out")
        for key in seen:
            mine = [(one.shop, one.day, one.value) for one in found if (one.shop, one.day) == key]
            assert mine == [one for one in expected if one[:2] == key]


def test_a_single_key_is_emitted_under_its_name() -> None:
    job = job_of("sum", "shop")
    (record,) = job.run({"sales": [("s", [Sale("a", 1, 3)])]}).output("out")
    assert (record.shop, record.value) == ("a", 3.0)


def test_only_numbers_are_aggregated() -> None:
    sales = ps.Job("j").data_stream("sales", schema=Sale).key_by("shop")
    with pytest.raises(JobDefinitionError, match="'note' is string, and only numbers have that"):
        sales.max("step", "note")
