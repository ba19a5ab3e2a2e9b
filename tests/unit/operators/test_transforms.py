"""Stateless functions: results stay in order, and an error or a misfit costs one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.record_blocks import Records
from penstock.operators.transforms import apply_transform
from penstock.records.schemas import record_type


@dataclass
class Item:
    """Refuses one value."""

    value: int

    def __post_init__(self) -> None:
        if self.value == 4:
            raise KeyError("four")


@dataclass
class Plain:
    value: int


@dataclass
class Made:
    value: int


def records_of(values: list[int]) -> Records:
    """Return records whose offsets are ten times their position."""
    batch = record_type(Plain).batch([Plain(value) for value in values])
    return Records(batch, "items", "p0", pa.array(range(0, 10 * len(values), 10), pa.int64()))


def doubled(item: Item) -> Made:
    if item.value == 3:
        raise ValueError("three")
    return Made("two" if item.value == 2 else 2 * item.value)  # type: ignore[arg-type]


def is_odd(item: Item) -> bool:
    if item.value == 2:
        raise ValueError("two")
    return item.value % 2 == 1


def repeated(item: Item) -> Any:
    for number in range(item.value):
        yield Made(2**63 if (item.value, number) == (3, 1) else number)
    if item.value == 2:
        raise ValueError("two")


def expected(kind: str, value: int) -> tuple[list[int], int]:
    """Return the output for a record of that value, and its number of dead letters."""
    if value == 4:
        return [], 1
    if kind == "map":
        return ([], 1) if value in (2, 3) else ([2 * value], 0)
    if kind == "filter":
        return ([], 1) if value == 2 else ([value] if value % 2 else [], 0)
    return {2: ([], 1), 3: ([0, 2], 1)}.get(value, (list(range(value)), 0))


@given(values=st.lists(st.integers(0, 5), max_size=12))
@pytest.mark.parametrize(("kind", "function"), [("map", doubled), ("filter", is_odd), ("flat_map", repeated)])
def test_only_the_culprits_are_lost(
    kind: Literal["map", "filter", "flat_map"], function: Any, values: list[int]
) -> None:
    """The function may raise (also after some records), its result may not fit, or the record itself may raise."""
    source = record_type(Item)
    target = source if kind == "filter" else record_type(Made)
    result, letters = apply_transform(kind, function, records_of(values), source, target, "step")
    gave = [(10 * place, made) for place, value in enumerate(values) for made in expected(kind, value)[0]]
    assert list(zip(result.offsets.to_pylist(), result.batch.column(0).to_pylist(), strict=True)) == gave
    blamed = [10 * place for place, value in enumerate(values) for _ in range(expected(kind, value)[1])]
    assert sorted(letter.offset for letter in letters) == blamed
    for letter in letters:
        assert (letter.stream, letter.step, letter.partition) == ("items", "step", "p0")
        assert letter.raw == b'{"value":%d}' % values[letter.offset // 10]
        assert "transforms.py" not in letter.reason.replace("test_transforms.py", ""), (
            "our frames help nobody"
        )


def test_a_map_must_return_a_record() -> None:
    """The reason names the function for dropping records."""
    kind = record_type(Plain)
    result, (letter,) = apply_transform("map", lambda _: None, records_of([1]), kind, kind, "step")
    assert len(result) == 0
    assert "use filter or flat_map to drop records" in letter.reason
