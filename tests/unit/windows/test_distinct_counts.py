"""Distinct counts: exact for few values, within the accuracy for many, and independent of order and
partitioning.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import JobDefinitionError
from penstock.records.schemas import arrow_type_of
from penstock.windows.column_aggregates import NEW
from penstock.windows.distinct_counts import DEFAULT_ACCURACY, DistinctCount, Sketch, SketchColumns
from penstock.windows.value_hashes import column_hashes, value_hash


@dataclass
class Visit:
    visitor: Any


COARSE = 0.25
"""The coarsest accuracy, which keeps 17 hashes."""

VALUES = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(),
    str: st.text(max_size=40),
    bytes: st.binary(max_size=40),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=st.just(dt.UTC)),
}


def sketch_of(values: Any, accuracy: float = DEFAULT_ACCURACY) -> tuple[DistinctCount, Sketch]:
    aggregate = DistinctCount("visitor", accuracy)
    sketch = aggregate.create_accumulator()
    for value in values:
        sketch = aggregate.add(Visit(value), sketch)
    return aggregate, sketch


def counted(values: Any, accuracy: float = DEFAULT_ACCURACY) -> int:
    aggregate, sketch = sketch_of(values, accuracy)
    return aggregate.get_result(sketch).distinct


def columns_of(values: Any, accuracy: float = DEFAULT_ACCURACY) -> SketchColumns:
    """Return one sketch as columns."""
    aggregate = DistinctCount("visitor", accuracy)
    batch = pa.record_batch({"visitor": pa.array(values)})
    found = aggregate.values([batch])
    assert found is not None
    has_value, hashes = found
    empty = SketchColumns(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))
    return aggregate.add_all(
        empty.take(np.array([NEW])), np.zeros(has_value.sum(), np.int64), hashes[has_value]
    )


@given(st.data(), st.sampled_from(sorted(VALUES, key=str)))
def test_a_value_has_the_same_hash_alone_and_in_a_column(data: Any, kind: Any) -> None:
    values = data.draw(st.lists(VALUES[kind], max_size=8))
    hashes = [value_hash(value) for value in values]
    assert column_hashes(pa.array(values, arrow_type_of(kind))).tolist() == hashes
    assert all(0 <= one < 2**63 for one in hashes)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (42, pa.int64(), 6533386293079482793),
        (42, pa.int8(), 6533386293079482793),
        (2**64 - 1, pa.uint64(), 4821274198456001380),
        (-1, pa.int64(), 4821274198456001380),
        (True, pa.bool_(), 5734460614224530634),
        (0.5, pa.float64(), 2622694810131950881),
        (0.5, pa.float32(), 2622694810131950881),
        (-0.0, pa.float64(), 1901844396197645789),
        (0.0, pa.float64(), 1901844396197645789),
        (math.nan, pa.float64(), 8419154391374304598),
        ("penstock", pa.string(), 5832618288379472697),
        (b"penstock", pa.binary(), 5832618288379472697),
        (dt.date(1970, 2, 12), pa.date32(), 6533386293079482793),
        (
            dt.datetime(1970, 1, 1, microsecond=42, tzinfo=dt.UTC),
            pa.timestamp("us", "UTC"),
            6533386293079482793,
        ),
    ],
)
def test_hashes_are_fixed(value: Any, kind: pa.DataType, expected: int) -> None:
    """Stored state has these hashes, so they must never change. They equal those of the XXH64 library for the
    bytes.
    """
    assert value_hash(value) == expected
    assert column_hashes(pa.array([value], kind)).tolist() == [expected]


def test_a_member_of_an_enumeration_is_its_value() -> None:
    kind = enum.Enum("kind", {"TEA": "tea", "FORTY_TWO": 42})
    assert [value_hash(one) for one in kind] == [value_hash("tea"), value_hash(42)]


@given(st.lists(st.none() | st.integers(-20, 20), max_size=80))
def test_few_values_are_counted_exactly(values: list[int | None]) -> None:
    """Counts are exact up to 1 / accuracy**2 values; null is not counted."""
    exact = len({value for value in values if value is not None})
    assert counted(values) == exact
    few = [value for value in values if value is None or value % 3 == 0]
    assert counted(few, COARSE) == len({value for value in few if value is not None}) <= 16
    assert columns_of([*values, None, 99]).estimates().tolist() == [exact + 1]


def test_the_count_is_exact_up_to_the_number_of_hashes() -> None:
    """At the coarsest accuracy the limit is 17: 1 / accuracy**2 plus one."""
    for count in range(18):
        assert counted(range(count), COARSE) == count
    assert sketch_of(range(17), COARSE)[1].limit is None
    assert sketch_of(range(18), COARSE)[1].limit is not None


@given(st.lists(st.integers(0, 60), max_size=120), st.randoms(use_true_random=False), st.data())
def test_neither_order_nor_parts_make_a_difference(
    values: list[int], order: random.Random, data: Any
) -> None:
    """Reordered values, repeated values, parts merged in either order, and columns all give the same sketch."""
    aggregate, sketch = sketch_of(values, COARSE)
    shuffled = [*values, *values[::2]]
    order.shuffle(shuffled)
    assert sketch_of(shuffled, COARSE)[1] == sketch
    cut = data.draw(st.integers(0, len(shuffled)))
    first, second = (sketch_of(part, COARSE)[1] for part in (shuffled[:cut], shuffled[cut:]))
    assert aggregate.merge(first, second) == aggregate.merge(second, first) == sketch
    if values:
        columns = columns_of(shuffled, COARSE)
        assert columns.hashes.tolist() == list(sketch.hashes)
        assert columns.limits.tolist() == [-1 if sketch.limit is None else sketch.limit]
        assert columns.estimates().tolist() == [aggregate.get_result(sketch).distinct]


@pytest.mark.parametrize("accuracy", [0.02, 0.1])
@pytest.mark.parametrize("count", [3_000, 40_000])
def test_estimates_are_as_accurate_as_declared(accuracy: float, count: int) -> None:
    """Over 50 sets of values the mean error is 0 and its deviation at most the accuracy, up to chance."""
    rounds = 50
    errors = np.array(
        [
            columns_of(np.arange(count) + number * 1_000_003, accuracy).estimates()[0] / count - 1
            for number in range(rounds)
        ]
    )
    # The bounds are three standard deviations of the mean, and of the deviation, of so many normal errors.
    assert abs(errors.mean()) < 3 * accuracy / math.sqrt(rounds)
    assert np.sqrt((errors**2).mean()) < accuracy * (1 + 3 / math.sqrt(2 * rounds))


@pytest.mark.parametrize("form", ["text", "floats", "timestamps"])
def test_estimates_are_as_accurate_for_other_types(form: str) -> None:
    numbers = np.arange(20_000)
    values = {
        "text": pa.array([f"user-{number}" for number in numbers]),
        "floats": pa.array(numbers / 7),
        "timestamps": pa.array(numbers * 3_600_000_000).cast(pa.timestamp("us", "UTC")),
    }[form]
    assert columns_of(values).estimates()[0] == pytest.approx(20_000, rel=3 * DEFAULT_ACCURACY)


def test_a_sketch_stays_small() -> None:
    """Its size depends on the accuracy only, however many values are added."""
    assert len(columns_of(np.arange(100_000)).hashes) == 1113
    assert len(sketch_of(range(5_000))[1].hashes) == 1113
    assert len(columns_of(np.arange(100_000), 0.005).hashes) == 40_001


def test_another_accuracy_holds_from_the_next_value_on() -> None:
    """A coarser accuracy drops hashes; with a finer one dropped hashes stay dropped, and the estimate is
    still right.
    """
    aggregate, sketch = sketch_of(range(2_000), 0.05)
    assert len(sketch.hashes) == 401
    aggregate.accuracy.set(0.1)
    coarser = aggregate.add(Visit(0), sketch)
    assert coarser == sketch_of(range(2_000), 0.1)[1]
    aggregate.accuracy.set(0.02)
    finer = coarser
    for number in range(20_000):
        finer = aggregate.add(Visit(number), finer)
    assert finer.limit == coarser.limit
    assert len(finer.hashes) > 500
    assert aggregate.get_result(finer).distinct == pytest.approx(20_000, rel=0.15)
    assert aggregate.merge(finer, sketch) == finer


@pytest.mark.parametrize("accuracy", [0, 1, 0.004, 0.26, -0.1, math.nan, "3%", None, True])
def test_what_is_no_accuracy_is_refused(accuracy: Any) -> None:
    with pytest.raises(
        JobDefinitionError, match=r"The accuracy of a distinct count is .*, 0\.005 to 0\.25\."
    ):
        DistinctCount("visitor", accuracy)


def test_an_estimate_beyond_all_integers_is_the_largest() -> None:
    """Such an estimate occurs only with forged hashes."""
    most = 2**63 - 1024
    assert DistinctCount("visitor").get_result(Sketch(tuple(range(100)), 100)).distinct == most
    columns = SketchColumns(np.arange(100), np.array([0, 100]), np.array([100]))
    assert columns.estimates().tolist() == [most]
