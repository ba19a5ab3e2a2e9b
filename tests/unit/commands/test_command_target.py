"""Command targets: how their text is parsed, and which commands are refused before they are sent."""

from __future__ import annotations

import json

import pytest
from control_checkpoint import AT, ENTRY
from hypothesis import given
from hypothesis import strategies as st

from penstock.commands.command_target import check_known, parse_target
from penstock.control.commands import Command, Target
from penstock.errors import CommandRefusedError

int_keys = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)
plain_texts = st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"]), min_size=1)
plain_keys = st.lists(plain_texts, min_size=1, max_size=5).filter(lambda keys: keys != ["*"])
any_texts = st.text(st.characters(exclude_categories=["Cs"]))


def keys_of(target: Target) -> list[object]:
    return [target.key] if target.keys is None else list(target.keys)


@given(int_keys)
def test_integers_are_keys_of_a_step_with_integer_keys(keys: list[int]) -> None:
    """One or several integer keys are parsed, and the target's text parses back to the same target."""
    target = parse_target(f"heat/{','.join(map(str, keys))}", None, ENTRY)
    assert (target.step, target.scope, keys_of(target)) == ("heat", "key" if len(keys) == 1 else "keys", keys)
    assert parse_target(str(target), None, ENTRY) == target


@given(plain_keys)
def test_text_is_a_key_of_a_step_with_text_keys(keys: list[str]) -> None:
    """The text is the key, even if it has digits, slashes or spaces."""
    target = parse_target(f"names/{','.join(keys)}", None, ENTRY)
    assert (target.step, keys_of(target)) == ("names", keys)
    assert parse_target(str(target), None, ENTRY) == target


@given(st.lists(any_texts, min_size=1, max_size=5), st.lists(st.tuples(st.integers(), any_texts), min_size=1))
def test_any_key_can_be_given_as_json(texts: list[str], pairs: list[tuple[int, str]]) -> None:
    """JSON covers keys that a target's text cannot hold, and keys of several fields."""
    assert keys_of(parse_target("names", json.dumps(texts), ENTRY)) == texts
    small = [[number % 1000, text] for number, text in pairs]
    assert keys_of(parse_target("pairs", json.dumps(small), ENTRY)) == small


def test_targets_without_keys() -> None:
    """The whole job, a step, and all keys of a step."""
    assert parse_target("*", None, ENTRY) == Target()
    assert parse_target("heat", None, ENTRY) == Target("heat")
    assert parse_target("heat/*", None, ENTRY) == Target("heat", all=True)


@pytest.mark.parametrize(
    ("text", "keys", "said"),
    [
        ("cool", None, "has heat, names, pairs"),
        ("", None, "names no step"),
        ("*/1", None, "names no step"),
        ("heat/", None, "heat/* for all keys"),
        ("heat/1,,2", None, "an empty key"),
        ("heat/one", None, "\"one\" does not have the key type of the step 'heat', int64"),
        ("heat/1.5", None, "int64"),
        ("heat/ 1", None, "int64"),
        ("heat/9223372036854775808", None, "int64"),
        ("heat", "[true]", "int64"),
        ("heat", '["1"]', "int64"),
        ("names", "[1]", "key type of the step 'names', string"),
        ("names", "1", "not a JSON array"),
        ("names", "[1", "not a JSON array"),
        ("names", "[]", "names/* for all keys"),
        ("names/a", '["b"]', "Use one of them"),
        ("*", "[1]", "Name a step"),
        ("pairs/1", None, "--keys '[[1, \"b\"]]'"),
        ("pairs", "[1]", "struct<"),
    ],
)
def test_wrong_targets_are_refused(text: str, keys: str | None, said: str) -> None:
    """The message names what is wrong and the remedy."""
    with pytest.raises(CommandRefusedError) as refused:
        parse_target(text, keys, ENTRY)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "target", "said"),
    [
        ("explode", "heat", "takes no command 'explode'; it takes set, limit, pause"),
        ("explode", "*", "The job 'rooms' takes no command 'explode'; it takes set, limit, pause"),
        ("limit", "names/a", "The step 'names' takes no command 'limit'; it takes set"),
        ("set", "heat", "it takes it for heat/KEY, heat/KEY,KEY, heat/* (all keys)"),
        ("set", "names/*", "it takes it for names/KEY, names/KEY,KEY"),
        ("set", "*", "it takes it for STEP/KEY"),
        ("pause", "heat/1", "it takes it for heat (the step), * (the whole job)"),
        ("", "heat", "the kind is empty"),
    ],
)
def test_commands_that_no_step_takes_are_refused(kind: str, target: str, said: str) -> None:
    """The message lists the commands that the steps take."""
    command = Command(id="x", kind=kind, target=parse_target(target, None, ENTRY))
    with pytest.raises(CommandRefusedError) as refused:
        check_known(command, ENTRY)
    assert said in str(refused.value)


def test_commands_that_a_step_takes_are_not_refused() -> None:
    """The payload is not checked here: the job does that."""
    for kind, target in [("set", "heat/1"), ("pause", "*"), ("pause", "heat"), ("limit", "heat/*")]:
        check_known(Command(id="x", kind=kind, target=parse_target(target, None, ENTRY)), ENTRY)
    with pytest.raises(CommandRefusedError, match="expires_at has no time zone"):
        check_known(Command(id="x", kind="pause", expires_at=AT.replace(tzinfo=None)), ENTRY)
