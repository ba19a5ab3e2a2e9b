"""Slots: every task has one, and each has a contiguous range of key groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.slots import slot_keys, slots_of_key_groups, spark_hash


def test_the_hash_is_sparks() -> None:
    """The values come from `SELECT hash(CAST(x AS INT))`; state is found by them."""
    vectors = {0: 933211791, 1: -559580957, 2: 1765031574, -1: -1604776387, 12345: -2122148428}
    assert {value: spark_hash(value) for value in vectors} == vectors


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 8, 64, 200])
def test_every_partition_has_one_slot(parallelism: int) -> None:
    """The key of slot `i` falls into partition `i`, and no smaller key does."""
    for partition, key in enumerate(slot_keys(parallelism)):
        falls_there = [other for other in range(key + 1) if spark_hash(other) % parallelism == partition]
        assert falls_there == [key]


@given(key_groups=st.integers(1, 500), data=st.data())
def test_key_groups_are_spread_evenly_in_ranges(key_groups: int, data: st.DataObject) -> None:
    """Ranges differ in length by at most one."""
    parallelism = data.draw(st.integers(1, key_groups))
    slots = slots_of_key_groups(key_groups, parallelism)
    keys = slot_keys(parallelism)
    partitions = [keys.index(slot) for slot in slots]
    assert partitions == sorted(partitions)
    counts = np.bincount(partitions, minlength=parallelism)
    assert counts.max() - counts.min() <= 1
