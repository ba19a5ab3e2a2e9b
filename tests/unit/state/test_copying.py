"""Copies of values: immutable values are shared, mutable ones copied deeply enough."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from penstock.records.schemas import record_type
from penstock.state.value_copies import copier_of


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Fixed:
    x: int
    colour: Colour | None = None


@dataclass
class Loose:
    x: int


@dataclass(slots=True)
class Slotted:
    values: list[int]


@dataclass(frozen=True)
class Mixed:
    fixed: Fixed
    loose: Loose | None
    rows: list[list[int]] = field(default_factory=list)


class Row(msgspec.Struct):
    values: list[Loose]


class FrozenRow(msgspec.Struct, frozen=True):
    values: tuple[Loose, ...]
    names: set[str]


@pytest.mark.parametrize(
    "kind", [int, str, dt.datetime, Colour, Fixed, tuple[int, ...], frozenset[int], Fixed | None]
)
def test_what_cannot_change_is_not_copied(kind: Any) -> None:
    """The value itself is returned."""
    assert copier_of(kind) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Loose, Loose(1)),
        (Slotted, Slotted([1])),
        (Mixed, Mixed(Fixed(1), Loose(2), [[1], [2]])),
        (Mixed, Mixed(Fixed(1), None)),
        (Row, Row([Loose(1)])),
        (FrozenRow, FrozenRow((Loose(1),), {"a"})),
        (list[Loose], [Loose(1)]),
        (dict[str, list[int]], {"a": [1]}),
        (set[int], {1}),
        (
            record_type("a INT, b ARRAY<INT>").python_class,
            record_type("a INT, b ARRAY<INT>").python_class(1, [2]),
        ),
    ],
)
def test_a_copy_shares_nothing_that_can_change(kind: Any, value: Any) -> None:
    """The copy is equal, and each mutable part is another object."""
    copier = copier_of(kind)
    assert copier is not None
    made = copier(value)
    assert made == value
    assert type(made) is type(value)
    assert not changeable(made) & changeable(value)


def changeable(value: Any) -> set[int]:
    """Return the identities of all mutable parts."""
    found = set()
    parts: list[Any] = []
    if isinstance(value, list | set):
        found, parts = {id(value)}, list(value)
    elif isinstance(value, tuple):
        parts = list(value)
    elif isinstance(value, dict):
        found, parts = {id(value)}, list(value.values())
    elif isinstance(value, msgspec.Struct):
        found = set() if value.__struct_config__.frozen else {id(value)}
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif hasattr(value, "__dataclass_fields__"):
        found = set() if value.__dataclass_params__.frozen else {id(value)}
        parts = [getattr(value, name) for name in value.__dataclass_fields__]
    return found.union(*map(changeable, parts))
