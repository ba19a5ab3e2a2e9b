"""Origins of emissions: independent of how records are grouped, and unique."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.emission_causes import Causes
from penstock.engine.step import Emission
from penstock.runtime.emission_origins import origin_columns

GROUPS = 4


def emission(rows: list[tuple[int, int]], output: str = "", place: str = "in/00001") -> Emission:
    """Return records by their keys and the offsets of their causes."""
    keys = pa.array([key for key, _ in rows], pa.int64())
    batch = pa.RecordBatch.from_arrays([keys], names=["key"])
    offsets = pa.array([offset for _, offset in rows], pa.int64())
    return Emission(output, batch, keys, None, Causes(pa.repeat(place, len(rows)), offsets))


def groups_of(one: Emission) -> Any:
    return (np.asarray(one.keys) % GROUPS).astype(np.uint16)


def names(emissions: list[Emission]) -> list[list[str]]:
    return [[] if column is None else column.to_pylist() for column in origin_columns(emissions, groups_of)]


def test_a_name_has_the_key_group_the_cause_and_a_number() -> None:
    """Numbers count the emissions of one record in a key group, over emissions of one output."""
    first, second = emission([(0, 5), (1, 5), (4, 5), (0, 6)]), emission([(8, 6), (1, 6)])
    side, other = emission([(0, 5)], "side"), emission([(0, 5)], place="in/00002")
    unknown = Emission("late", first.batch, first.keys)
    assert names([first, side, second, other, unknown]) == [
        ["0/in/00001/5/0", "1/in/00001/5/0", "0/in/00001/5/1", "0/in/00001/6/0"],
        ["0/in/00001/5/0"],
        ["0/in/00001/6/1", "1/in/00001/6/0"],
        ["0/in/00002/5/0"],
        [],
    ]
    assert names([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_names_do_not_depend_on_what_comes_together(seed: int) -> None:
    """Records may come in one round, in one round each, or by key group."""
    made = random.Random(seed)
    rows = [
        (made.randrange(12), offset)
        for offset in range(made.randrange(1, 30))
        for _ in range(made.randrange(4))
    ]
    (together,) = names([emission(rows)])
    assert len(set(together)) == len(rows)
    by_record = itertools.groupby(zip(rows, together, strict=True), key=lambda one: one[0][1])
    for _, found in by_record:
        some = list(found)
        assert names([emission([row for row, _ in some])]) == [[name for _, name in some]]
    for group in range(GROUPS):
        alone = [(row, name) for row, name in zip(rows, together, strict=True) if row[0] % GROUPS == group]
        assert names([emission([row for row, _ in alone])]) == [[name for _, name in alone]]
    cut = made.randrange(len(rows) + 1)
    halves = names([emission(rows[:cut]), emission(rows[cut:])])
    assert [*halves[0], *halves[1]] == together
