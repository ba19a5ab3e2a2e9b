"""Plain values: the fast decoder equals decoding name by name, and leaves other types to that."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from typing import Any

import pytest

import penstock as ps
from penstock.state.plain_values import PlainValues
from penstock.state.values import KeyedState


class Switch(enum.Enum):
    ON = "on"
    OFF = "off"


@dataclass
class Band:
    low: float
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.low == 13:
            raise ZeroDivisionError("thirteen")


STATES: dict[str, KeyedState] = {
    "limit": ps.ValueState(int),
    "share": ps.ValueState(float),
    "switch": ps.ValueState(Switch),
    "band": ps.ValueState(Band),
    "größe": ps.ValueState(int),
    "held": ps.TemporalState(int),
    "short": ps.ValueState(int, ttl=ps.Ttl(dt.timedelta(hours=1))),
    "many": ps.ListState(int),
}
for name, state in STATES.items():
    state.name = name


@pytest.mark.parametrize(
    ("payload", "values"),
    [
        ('{"limit": 3}', {"limit": 3}),
        ('{"share": 3, "switch": "off"}', {"share": 3.0, "switch": Switch.OFF}),
        ('{"band": {"low": 1}, "größe": null}', {"band": Band(1.0, []), "größe": None}),
        ('{"limit": 1, "limit": 2}', {"limit": 2}),
    ],
)
def test_what_is_read_is_what_the_states_read(payload: str, values: dict[str, Any]) -> None:
    found = PlainValues(STATES).read(payload.encode())
    assert found == values
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in values.items()
    }


@pytest.mark.parametrize(
    "payload",
    [
        "{}",
        "null",
        "3",
        '{"limit": "3"}',
        '{"limit": 1, "other": 2}',
        '{"held": 1}',
        '{"short": 1}',
        '{"many": [1]}',
        '{"band": {"low": 13}}',
        '{"value_0": 1}',
        '{"limit": ',
    ],
)
def test_the_rest_is_left_to_them(payload: str) -> None:
    assert PlainValues(STATES).read(payload.encode()) is None


def test_a_step_without_such_states_leaves_all_to_them() -> None:
    assert PlainValues({"held": STATES["held"]}).read(b'{"held": 1}') is None
    assert PlainValues({}).read(b"{}") is None
