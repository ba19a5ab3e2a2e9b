"""Rows are brought together up to a bound, in the same runs however they are batched."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from penstock.snapshots.row_sizes import Bound, row_sizes, runs_within

TYPE = pa.struct([("text", pa.string()), ("several", pa.list_(pa.binary())), ("at", pa.timestamp("us"))])
ROWS = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=20),
        "several": st.none() | st.lists(st.none() | st.binary(max_size=10), max_size=4),
        "at": st.none() | st.integers(0, 10**9),
    }
)


@given(
    rows=st.lists(ROWS, max_size=30),
    cuts=st.lists(st.integers(0, 30)),
    max_rows=st.integers(1, 10),
    max_bytes=st.integers(1, 200),
)
@settings(examples(60))
def test_runs_depend_on_the_rows_alone(
    rows: list[dict[str, object]], cuts: list[int], max_rows: int, max_bytes: int
) -> None:
    """All rows in order, none of which would have fitted into the run before."""
    batch = pa.RecordBatch.from_struct_array(pa.array(rows, TYPE)) if rows else None
    bound = Bound(max_rows, max_bytes)
    if batch is None:
        assert list(runs_within([], bound)) == []
        return
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    cut = [batch.slice(start, end - start) for start, end in itertools.pairwise(ends)]
    runs = [[part.num_rows for part in run] for run in runs_within(cut, bound)]
    counts = [sum(run) for run in runs]
    assert counts == [sum(part.num_rows for part in run) for run in runs_within([batch], bound)]
    assert sum(counts) == len(rows)
    sizes = row_sizes(batch).tolist()
    start = 0
    for count in counts:
        run, start = sizes[start : start + count], start + count
        assert count == 1 or (sum(run) <= max_bytes and count <= max_rows)
        if start < len(rows):
            assert count == max_rows or sum(run) + sizes[start] > max_bytes
    shown = [row for run in runs_within(cut, bound) for part in run for row in part.to_pylist()]
    assert shown == batch.to_pylist()


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        (pa.array([1, None], pa.int64()), [8, 8]),
        (pa.array(["a", None, "bc"]), [5, 4, 6]),
        (pa.array([[1, 2], None, [3]], pa.list_(pa.int32())), [12, 4, 8]),
        (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), [17, 4]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), [4, 4]),
        (pa.nulls(2), [0, 0]),
    ],
)
def test_a_row_takes_what_its_values_take(column: pa.Array, sizes: list[int]) -> None:
    """Also in the middle of an array."""
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    assert row_sizes(batch).tolist() == sizes
    assert row_sizes(batch.slice(1)).tolist() == sizes[1:]
