"""Admitted commands: each slot sees every command, in one order, and the payload only of those that concern it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.control.admitted_commands import (
    AdmittedCommand,
    CommandIdNotice,
    PlainSets,
    commands_for_slot,
    decode_commands,
    encode_commands,
)
from penstock.control.commands import Command, Target
from penstock.control.receipts import RecordPosition

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIMES = st.sampled_from([None, NOW])
TARGETS = st.one_of(
    st.builds(Target, st.sampled_from(["a", "b"]), st.one_of(st.integers(0, 9), st.text(max_size=3))),
    st.builds(lambda keys: Target("a", keys=keys), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.builds(lambda: Target("a", all=True)),
    st.builds(lambda: Target("b")),
)
COMMANDS = st.builds(
    Command,
    id=st.text(min_size=1, max_size=4),
    kind=st.sampled_from(["set", "set", "set", "other"]),
    target=TARGETS,
    version=st.sampled_from([None, None, None, 3]),
    issued_by=st.sampled_from(["", "ann"]),
    issued_at=TIMES,
    effective_at=st.sampled_from([None, None, None, NOW]),
    expires_at=st.sampled_from([None, None, None, NOW]),
    payload=st.builds(lambda value: msgspec.Raw(msgspec.json.encode({"x": value})), st.integers(0, 9)),
)
REFUSALS = st.sampled_from(["", "", "", "why not"])


def order(number: int, command: Command, refusal: str) -> AdmittedCommand:
    """A command for keys in the key groups 0 to 3."""
    target = command.target
    named: list[Any] = [target.key] if target.key is not None else list(target.keys or ())
    groups = [] if refusal else [len(str(key)) % 4 for key in named]
    return AdmittedCommand(RecordPosition("commands", "0", number), command, target.step, refusal, groups)


def one_by_one(orders: list[AdmittedCommand], own: frozenset[int]) -> list[AdmittedCommand | CommandIdNotice]:
    """The model: what a slot should see of the commands."""
    return [
        one if concerns(one, own) else CommandIdNotice(one.place, one.judge, one.command.id) for one in orders
    ]


def concerns(one: AdmittedCommand, own: frozenset[int]) -> bool:
    return 0 in own if one.refusal else not one.key_groups or not own.isdisjoint(one.key_groups)


@examples(200)
@given(st.lists(st.tuples(COMMANDS, REFUSALS), max_size=12))
def test_what_travels_together_is_what_would_travel_one_by_one(given: list[tuple[Command, str]]) -> None:
    """Encoding commands together equals encoding them one by one. For other slots' commands only the id
    travels, under its step.
    """
    orders = [order(number, command, refusal) for number, (command, refusal) in enumerate(given)]
    for own in (frozenset({0, 1}), frozenset({2, 3})):
        seen = commands_for_slot(orders, own, lambda one, own=own: concerns(one, own))
        found: list[AdmittedCommand | CommandIdNotice] = []
        for some in decode_commands(encode_commands(seen)):
            found += some.separate() if isinstance(some, PlainSets) else [some]
        assert [_plain(one) for one in found] == [_plain(one) for one in one_by_one(orders, own)]
        places = [some.place for some in seen]
        assert places == sorted(places)


def _plain(one: AdmittedCommand | CommandIdNotice) -> Any:
    """Return both as plain data, without the position of glimpsed commands, which a run omits."""
    return (one.judge, one.id) if isinstance(one, CommandIdNotice) else msgspec.json.encode(one)
