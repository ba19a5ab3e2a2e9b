"""Reducing and aggregating state: inputs are folded, and a record that raises leaves the fold unchanged."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from bound_state import AtWork, state_at
from careless_mean import Mean, MeanOf

import penstock as ps
from penstock.errors import SchemaError, StateError, UnstorableValueError


class Unannotated(ps.AggregateFunction[Any, Any, Any]):
    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return 0

    def add(self, value, accumulator):  # type: ignore[no-untyped-def]
        return accumulator + len(value)

    def get_result(self, accumulator):  # type: ignore[no-untyped-def]
        return accumulator


def joined(best: Mean, other: Mean) -> Mean:
    best.total += other.total
    best.last.extend(other.last)
    return best


def test_values_are_reduced() -> None:
    """The first value is taken unchanged; `set` replaces it, `clear` starts anew."""
    work = AtWork(ps.ReducingState(float, max))
    assert work.at(1).get() is None
    for value in (3, 5.0, 4.0):
        work.at(1).add(value)
    work.at(2).set(9.0)
    work.at(2).add(1.0)
    work.at(3).add(1.0)
    work.at(3).clear()
    assert work.reload() == 2
    assert [work.at(key).get() for key in (1, 2, 3)] == [5.0, 9.0, None]
    assert work.state.columns().values[:2].tolist() == [5.0, 9.0]


def test_values_are_aggregated() -> None:
    """The accumulator is stored; columns show it and `set` replaces it."""
    work = AtWork(ps.AggregatingState(MeanOf()))
    assert work.at(1).get() is None
    for value in (3, 6.0):
        work.at(1).add(value)
    work.at(2).set(Mean(9.0, 3))
    assert work.reload() == 2
    assert [work.at(key).get() for key in (1, 2, 3)] == [4.5, 3.0, None]
    columns = work.state.columns()
    assert columns["total"][:2].tolist() == [9.0, 9.0]
    assert columns["last"][:2].tolist() == [[3.0, 6.0], []]
    work.state.put(np.array([0]), {"total": [1.0], "count": [1], "last": [[1.0]]})
    work.flush()
    assert work.at(1).get() == 1.0


@pytest.mark.parametrize(
    ("declared", "value"),
    [(ps.ReducingState(Mean, joined), Mean(1.0, 1, [1.0])), (ps.AggregatingState(MeanOf()), 1.0)],
)
def test_a_function_may_change_what_it_is_given(declared: Any, value: Any) -> None:
    """If it raises, the fold is unchanged, including nested lists."""
    work = AtWork(declared)
    work.at(1).set(Mean(5.0, 1, [5.0]))
    before = work.column.values[1]
    work.at(1).add(value)
    assert work.column.values[1] == Mean(6.0, work.column.values[1].count, [5.0, 1.0])
    work.state.add(value)
    work.raised()
    assert work.column.values[1] is before
    assert before == Mean(5.0, 1, [5.0])


def test_two_keys_may_be_set_to_one_object() -> None:
    """A command to several keys does so."""
    work = AtWork(ps.AggregatingState(MeanOf()))
    same = Mean(5.0, 1)
    for key in (1, 2):
        work.at(key).set(same)
    work.at(1).add(7.0)
    assert [work.at(key).get() for key in (1, 2)] == [6.0, 5.0]


def test_what_is_of_another_type_is_refused() -> None:
    """Values, accumulators and function results are checked; without annotations anything is accepted."""
    reducing = state_at(1, ps.ReducingState(int, max))
    aggregating = state_at(1, ps.AggregatingState(MeanOf()))
    broken = state_at(1, ps.ReducingState(int, lambda a, b: None))
    broken.add(1)
    for call in (
        lambda: reducing.add("a"),
        lambda: reducing.add(None),
        lambda: reducing.set("a"),
        lambda: aggregating.add("a"),
        lambda: aggregating.set(5),
        lambda: broken.add(2),
    ):
        with pytest.raises(TypeError, match="'kept'"):
            call()
    free = state_at(1, ps.AggregatingState(Unannotated(), accumulator=int))
    free.add("abc")
    free.add([1])
    assert free.get() == 4


def test_what_cannot_be_stored_is_found_at_once_when_checked() -> None:
    """This includes results of the function."""
    reducing = state_at(1, ps.ReducingState(int, lambda a, b: a * b), checks=True)
    reducing.add(2**40)
    with pytest.raises(UnstorableValueError):
        reducing.add(2**40)
    assert reducing.get() == 2**40
    free = state_at(1, ps.AggregatingState(Unannotated(), accumulator=int), checks=True)
    free.set(2**63 - 1)
    with pytest.raises(UnstorableValueError):
        free.add("a")
    assert free.get() == 2**63 - 1


def test_json_sets_them() -> None:
    """JSON sets a reducing state to a value, an aggregating one to an accumulator."""
    assert ps.ReducingState(int, max).value_of(b"5") == 5
    state = ps.AggregatingState(MeanOf())
    state.name = "mean"
    assert state.value_of(b'{"total": 5, "count": 1}') == Mean(5.0, 1)
    assert state.value_of(b"null") is None
    with pytest.raises(msgspec.ValidationError, match=r"'mean' is aggregating, .* accumulator \(Mean\)"):
        state.value_of(b"5")


class Silent(MeanOf):
    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Mean()


class Half(ps.AggregateFunction[float, Mean, float]):
    def create_accumulator(self) -> Mean:
        return Mean()


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        (MeanOf, r"give an instance: MeanOf\(\)"),
        (max, "is not an AggregateFunction"),
        (Silent(), "Silent.create_accumulator has no return annotation"),
        (Half(), "Half does not override add"),
    ],
)
def test_what_is_no_aggregate_is_told_when_the_job_is_described(aggregate: Any, said: str) -> None:
    """The error says what to do."""
    with pytest.raises(SchemaError, match=said):
        ps.AggregatingState(aggregate).spec()


def test_what_is_no_reduce_function_is_told_when_the_job_is_described() -> None:
    """The error says what to do."""
    with pytest.raises(SchemaError, match="is not a function of two values"):
        ps.ReducingState(int, 5).spec()  # type: ignore[arg-type]


def test_they_work_only_inside_their_function() -> None:
    """Outside they raise, like every state."""
    for state in (ps.ReducingState(int, max), ps.AggregatingState(MeanOf())):
        for call in (state.get, state.clear, lambda state=state: state.add(1), state.columns):
            with pytest.raises(StateError, match="has a value only while"):
                call()
    with pytest.raises(NotImplementedError):
        MeanOf().merge(Mean(), Mean())
