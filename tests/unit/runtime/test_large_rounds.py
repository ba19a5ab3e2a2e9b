"""Large rounds: records of many blocks are ordered by key group."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.record_blocks import Block
from penstock.runtime import large_rounds
from penstock.runtime.large_rounds import by_key_group


def block_of(partition: str, offset: int, groups: list[int]) -> Block:
    batch = pa.RecordBatch.from_pydict({"group": groups, "offset": list(range(offset, offset + len(groups)))})
    return Block(0, "readings", partition, offset, batch)


def groups_of(block: Block) -> npt.NDArray[np.uint16]:
    return block.batch.column("group").to_numpy().astype(np.uint16)


@given(
    parts=st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), min_size=1, max_size=8)), max_size=6
    ),
    order=st.randoms(use_true_random=False),
)
def test_records_of_a_key_group_keep_their_order(
    parts: list[tuple[str, list[int]]], order: random.Random
) -> None:
    """For any order of the blocks each origin has one block, with its records by group, then by offset."""
    blocks = [block_of(partition, 10 * number, groups) for number, (partition, groups) in enumerate(parts)]
    shuffled = list(blocks)
    order.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_rounds, "_MANY_RECORDS", 0)
        found = by_key_group(shuffled, groups_of)
    expected: dict[str, list[tuple[int, int]]] = {}
    for one in blocks:
        rows = zip(*(column.to_pylist() for column in one.batch.columns), strict=True)
        expected.setdefault(one.partition, []).extend(rows)
    if len(blocks) > 1:
        expected = {partition: sorted(rows) for partition, rows in expected.items()}
    as_rows = {
        one.partition: list(zip(*(column.to_pylist() for column in one.batch.columns), strict=True))
        for one in found
    }
    assert as_rows == expected


def test_few_records_stay_as_they_are() -> None:
    """Ordering a small round is not worth its cost."""
    blocks = [block_of("a", 0, [3, 1]), block_of("a", 2, [2])]
    assert by_key_group(blocks, groups_of) is blocks
