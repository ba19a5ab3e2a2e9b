"""Rolling aggregates: after each record, the aggregate over all records of its key so far."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import msgspec
import pytest
from domains import Sale
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.base.declarations import find_declarations
from penstock.errors import JobDefinitionError, SchemaError
from penstock.state.values import KeyedState
from penstock.testing.batch_runner import BatchRunner

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
    """This holds over micro-batches; a key of several fields is emitted as those fields."""
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
    with pytest.raises(JobDefinitionError, match="'note' is string, but max needs a number"):
        sales.max("step", "note")


@dataclass
class Range:
    """The result of `RangeOf` for sales."""

    days: list[int]
    highest: int | None


class RangeOf(ps.AggregateFunction[Sale, Range, Range]):
    """Changes its accumulator in place, which is allowed."""

    def create_accumulator(self) -> Range:
        return Range([], None)

    def add(self, sale: Sale, found: Range) -> Range:
        found.days.append(sale.day)
        amounts = [amount for amount in (found.highest, sale.amount) if amount is not None]
        found.highest = max(amounts, default=None)
        return found

    def get_result(self, found: Range) -> Range:
        return found


class DaysOf(RangeOf):
    """A result that is no record."""

    def get_result(self, found: Range) -> int:  # type: ignore[override]
        return len(set(found.days))


def larger(one: Sale, other: Sale) -> Sale:
    """Return the larger; of equals the first, with both notes."""
    kept = other if (other.amount or 0) > (one.amount or 0) else one
    return Sale(kept.shop, kept.day, kept.amount, one.note + other.note)


NOTED = st.builds(
    Sale, st.sampled_from("ab"), st.integers(1, 9), st.none() | st.integers(-50, 50), st.sampled_from("xyz")
)
BATCHES = st.lists(st.lists(NOTED, max_size=5), max_size=4)


def describe_all(sales: ps.KeyedStream[str, Sale]) -> None:
    sales.count("count").sink_to("counts")
    sales.reduce("largest", larger).sink_to("largest")
    sales.aggregate("range", RangeOf()).sink_to("ranges")
    sales.aggregate("days", DaysOf()).sink_to("days")


def values_of(record: Any) -> tuple[Any, ...]:
    return astuple(record) if isinstance(record, Sale) else msgspec.structs.astuple(record)


def highest(sales: list[Sale]) -> int | None:
    return max((sale.amount for sale in sales if sale.amount is not None), default=None)


def folded(sales: list[Sale]) -> dict[str, list[Any]]:
    """The model: each step's output for the sales of one shop."""
    so_far = [sales[: number + 1] for number in range(len(sales))]
    ranges = [
        functools.reduce(lambda found, sale: RangeOf().add(sale, found), some, Range([], None))
        for some in so_far
    ]
    shop = sales[0].shop
    return {
        "counts": [(shop, len(some)) for some in so_far],
        "largest": [astuple(functools.reduce(larger, some)) for some in so_far],
        "ranges": [(shop, found.days, found.highest) for found in ranges],
        "days": [(shop, len({sale.day for sale in some})) for some in so_far],
    }


@given(BATCHES)
def test_count_reduce_and_aggregate_are_plain_folds(batches: list[list[Sale]]) -> None:
    """State is stored between the micro-batches."""
    job = ps.Job("j", key_groups=2)
    describe_all(job.data_stream("sales", schema=Sale).key_by("shop"))
    running = BatchRunner(job)
    seen: dict[str, list[Sale]] = {}
    for sales in batches:
        result = running.run({"sales": [("s", sales)]} if sales else {})
        for shop in {sale.shop for sale in sales}:
            mine = [sale for sale in sales if sale.shop == shop]
            expected = folded([*seen.get(shop, []), *mine])
            seen.setdefault(shop, []).extend(mine)
            for sink, records in expected.items():
                found = [values_of(one) for one in result.output(sink) if one.shop == shop]
                assert found == records[-len(mine) :], sink
        assert result.dead_letters == []


def test_states_have_names_that_say_what_they_hold() -> None:
    """A dump shows the names."""
    job = ps.Job("j")
    describe_all(job.data_stream("sales", schema=Sale).key_by("shop"))
    states = {
        node.step: set(find_declarations(type(node.function), KeyedState)) for node in job.graph.steps()
    }
    assert states == {
        "count": {"count"},
        "largest": {"reduced"},
        "range": {"accumulator"},
        "days": {"accumulator"},
    }


def test_records_of_ddl_are_reduced() -> None:
    """They have no user class, and narrow types."""
    job = ps.Job("j", key_groups=2)
    sales = job.data_stream("sales", schema="shop STRING, amount INT")
    sales.key_by("shop").reduce("last", lambda one, other: other).sink_to("out")
    sale = Sale("a", 1, 3)
    (record,) = BatchRunner(job).run({"sales": [("s", [sale])]}).output("out")
    assert (record.shop, record.amount) == ("a", 3)


def test_a_record_that_cannot_be_folded_is_a_dead_letter() -> None:
    """It leaves the state unchanged."""

    def strict(one: Sale, other: Sale) -> Sale:
        if other.note == "bad":
            raise ValueError("a bad note")
        return Sale(one.shop, other.day, (one.amount or 0) + (other.amount or 0))

    job = ps.Job("j", key_groups=2)
    job.data_stream("sales", schema=Sale).key_by("shop").reduce("total", strict).sink_to("out")
    sales = [Sale("a", 1, 3), Sale("a", 2, 4, "bad"), Sale("a", 3, 5)]
    result = BatchRunner(job).run({"sales": [("s", sales)]})
    assert [one.amount for one in result.output("out")] == [3, 8]
    assert ["a bad note" in letter.reason for letter in result.dead_letters] == [True]


class Unannotated(RangeOf):
    def get_result(self, found):  # type: ignore[no-untyped-def]
        return len(found.days)


def test_what_cannot_be_folded_is_refused_when_it_is_described() -> None:
    """The error names the step, and says what to do."""
    sales = ps.Job("j").data_stream("sales", schema=Sale).key_by("shop")
    with pytest.raises(JobDefinitionError, match=r"Step 'range': Unannotated.get_result does not say"):
        sales.aggregate("range", Unannotated())
    assert sales.aggregate("range", Unannotated(), output=int).record_type.field_names == ("shop", "value")
    with pytest.raises(SchemaError, match=r"Step 'class': .* give an instance: RangeOf\(\)"):
        sales.aggregate("class", RangeOf)  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="Step 'none': A reduce function takes two records"):
        sales.reduce("none", None)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="Step 'twice': There are two fields named 'day'"):
        sales.stream.key_by("day").aggregate("twice", DayOf())  # type: ignore[attr-defined]


@dataclass
class Day:
    day: int


class DayOf(ps.AggregateFunction[Sale, int, Day]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, sale: Sale, day: int) -> int:
        return sale.day

    def get_result(self, day: int) -> Day:
        return Day(day)
