"""Shared states: what code puts can be read again, and values of another type are refused."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from penstock.state.group_state import Cursor
from penstock.state.shared import BroadcastState, Setting, SharedStates


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Other(enum.Enum):
    LOW = 1


class Mode(enum.Enum):
    HEAT = "heat"


@pytest.mark.parametrize("member", [Level.HIGH, Mode.HEAT])
def test_members_of_enumerations_can_be_put(member: enum.Enum) -> None:
    """Any values work; members of another enumeration are refused."""
    declared: dict[str, Any] = {"rules": BroadcastState(str, type(member)), "mode": Setting(type(member))}
    for name, state in declared.items():
        state.name = name
    states = SharedStates(declared, None)
    states.writable = True
    bound: dict[str, Any] = states.bind(Cursor(None, []))
    bound["rules"].put("a", member)
    bound["mode"].set(member)
    with pytest.raises(TypeError):
        bound["mode"].set(Other.LOW)
    again = SharedStates(declared, states.dump())
    assert again.mapping("rules") == {"a": member}
    assert [version.value for version in again.settings["mode"]] == [member]
