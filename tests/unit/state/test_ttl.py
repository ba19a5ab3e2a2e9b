"""Time to live: declared for every kind of state, and when a value expires."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.state.ttl import expires_at_ms

HOUR = dt.timedelta(hours=1)


class Longest(ps.AggregateFunction[str, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: str, accumulator: int) -> int:
        return max(accumulator, len(value))

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_a_value_expires_after_its_ttl() -> None:
    """A TTL beyond the largest time expires at the largest time."""
    expires = expires_at_ms(ps.Ttl(HOUR), 1_000)
    assert expires == 3_601_000
    assert (
        expires_at_ms(ps.Ttl(dt.timedelta.max - dt.timedelta.max % dt.timedelta(milliseconds=1)), 2**63 - 5)
        == 2**63 - 1
    )


@pytest.mark.parametrize(
    "declare",
    [
        lambda ttl: ps.ValueState(int, ttl=ttl),
        lambda ttl: ps.ListState(int, ttl=ttl),
        lambda ttl: ps.MapState(str, int, ttl=ttl),
        lambda ttl: ps.ReducingState(int, max, ttl=ttl),
        lambda ttl: ps.AggregatingState(Longest(), ttl=ttl),
    ],
)
def test_every_kind_declares_one(declare: Any) -> None:
    """The TTL is part of the storage format; without one nothing expires."""
    ttl = ps.Ttl(HOUR, on="read_and_write", time="event")
    state = declare(ttl)
    assert state.ttl == state.spec().ttl == ttl
    assert declare(None).ttl is declare(None).spec().ttl is None


def test_a_record_has_one_too() -> None:
    """Records expire like other values."""
    assert ps.ValueState("a INT", ttl=ps.Ttl(HOUR)).spec().ttl == ps.Ttl(HOUR)
    assert ps.TemporalState(int).spec().ttl is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"after": 5}, "is a timedelta, not 5"),
        ({"after": dt.timedelta(0)}, "at least one"),
        ({"after": -HOUR}, "at least one"),
        ({"after": dt.timedelta(microseconds=1500)}, "whole milliseconds"),
        ({"after": HOUR, "on": "read"}, "on='read'; it is 'write' or 'read_and_write'"),
        ({"after": HOUR, "time": "wall"}, "time='wall'; it is 'processing' or 'event'"),
    ],
)
def test_what_is_no_time_to_live_is_refused(arguments: Any, said: str) -> None:
    """It is refused at declaration, and the error says what to do."""
    with pytest.raises(SchemaError, match=said):
        ps.Ttl(**arguments)
