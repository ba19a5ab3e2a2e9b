"""Commands to keys: which keys they reach, in which order they apply, and which are refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from domains import TimedReading
from encoded_commands import applied, final_statuses
from hypothesis import given
from hypothesis import strategies as st
from limits_step import LimitsRun, command
from property_examples import examples

from penstock.control.admitted_commands import PlainSets
from penstock.control.receipts import Receipt
from penstock.engine.command_execution import CommandExecution
from penstock.testing.batch_runner import NOW

SECOND = dt.timedelta(seconds=1)


def test_a_command_reaches_one_or_some_keys() -> None:
    """The keys need not have data; unknown keys count too, unless the command is only for known keys."""
    run = LimitsRun()
    run.read(range(20))
    result = run.run(
        command("set-limit", 5, key=3), command("set-limit", 6, key=[4, 99]), command("once", 2, key=[5])
    )
    assert set(final_statuses(result).values()) == {"APPLIED"}
    assert {seen.room: seen.limit for seen in result.output("seen")} == {3: 5, 4: 6, 99: 6}
    assert run.limits(2, 3, 4, 5, 99) == {2: 1, 3: 5, 4: 6, 5: 2, 99: 6}


def test_a_command_reaches_all_keys() -> None:
    """Keys known only from commands are included; the receipt counts them."""
    run = LimitsRun()
    run.read(range(20))
    run.run(command("set-limit", 6, key=99))
    receipt = applied(run.run(command("set-limit", 8, key="*")))
    assert (receipt.keys, receipt.key_groups) == (21, 8)
    assert run.limits(*range(20), 99) == dict.fromkeys([*range(20), 99], 8)


def test_a_key_that_is_seen_later_gets_what_all_got() -> None:
    """It gets the newest of each kind, in the order of their cuts, except kinds only for existing keys."""
    run = LimitsRun()
    run.run(
        command("set-limit", 8, key="*"), command("set", {"limit": 9}, key="*"), command("once", 1, key="*")
    )
    assert run.limits(1, 2) == {1: 9, 2: 9}
    run.run(command("set-limit", 10, key="*"))
    assert run.limits(1, 2, 3) == {1: 10, 2: 10, 3: 10}


def test_an_id_counts_once() -> None:
    """The payload does not matter; a duplicate has no second receipt, not even in a later micro-batch."""
    run = LimitsRun()
    first = run.run(
        command("set-limit", 5, key=1, id="a", version=3), command("set-limit", 6, key=1, id="a", version=4)
    )
    assert final_statuses(first) == {"a": "APPLIED"}
    assert run.run(command("set-limit", 50, key=1, id="a", version=30)).receipts == []
    assert run.limits(1) == {1: 5}


def test_versions_do_not_go_back() -> None:
    """This covers versions for one key, and those for all keys applied to later keys."""
    run = LimitsRun()
    first = run.run(
        command("set-limit", 5, key=1, id="a", version=3),
        command("set-limit", 7, key=1, id="b", version=2),
        command("set-limit", 7, key=2, id="c", version=2),
        command("set-limit", 9, key="*", id="d", version=3),
    )
    assert final_statuses(first) == {"a": "APPLIED", "b": "REJECTED", "c": "APPLIED", "d": "APPLIED"}
    (stale,) = (receipt.reason for receipt in first.receipts if receipt.status == "REJECTED")
    assert stale == "version 2 is stale: version 3 has been applied"
    again = run.run(command("set-limit", 1, key=5, id="e", version=1))
    assert final_statuses(again) == {"e": "REJECTED"}
    assert run.limits(1, 2) == {1: 9, 2: 9}


def test_an_expired_command_is_rejected() -> None:
    """The time of the micro-batch decides, which is the same in a replay."""
    result = LimitsRun().run(
        command("set-limit", 5, key=1, id="late", expires_at=(NOW - SECOND).isoformat()),
        command("set-limit", 5, key=1, id="early", expires_at=(NOW + SECOND).isoformat()),
    )
    assert final_statuses(result) == {"late": "REJECTED", "early": "APPLIED"}


def test_a_malformed_command_takes_its_id() -> None:
    """Later commands with that id are duplicates; the commands around it are applied."""
    run = LimitsRun()
    result = run.run(
        command("set", {"limit": 1}, key=1, id="one"),
        b'{"id": "two", "kind": 5}',
        command("set", {"limit": 2}, key=2, id="two"),
        command("set", {"limit": 3}, key=3, id="three"),
    )
    assert final_statuses(result) == {"one": "APPLIED", "two": "REJECTED", "three": "APPLIED"}
    assert run.limits(1, 2, 3) == {1: 1, 2: None, 3: 3}


def test_a_malformed_command_is_a_duplicate_of_a_good_one_before_it() -> None:
    """The valid command is applied."""
    run = LimitsRun()
    result = run.run(command("set", {"limit": 4}, key=2, id="x"), b'{"id": "x", "kind": 5}')
    assert final_statuses(result) == {"x": "APPLIED"}
    assert run.limits(2) == {2: 4}


_KEYS = st.integers(0, 5)
_SETS = st.builds(
    lambda payload, key, version, again: {
        "kind": "set",
        "payload": payload,
        "key": key,
        "version": version,
        **({} if again is None else {"id": again}),
    },
    st.dictionaries(st.sampled_from(["limit", "held"]), st.one_of(st.none(), st.integers(0, 20)), min_size=1),
    st.one_of(_KEYS, st.lists(_KEYS, min_size=1, max_size=3), st.just("*")),
    st.one_of(st.none(), st.integers(0, 4)),
    # Some come twice.
    st.one_of(st.none(), st.none(), st.sampled_from(["one", "other"])),
)
_HANDLED = st.builds(
    lambda kind, payload, key: {"kind": kind, "payload": payload, "key": key},
    st.sampled_from(["set-limit", "hold", "once", "add-to-all"]),
    st.integers(12, 15),
    _KEYS,
)


@examples(30)
@given(st.lists(st.lists(st.one_of(_SETS, _HANDLED), max_size=8), max_size=4))
def test_values_are_set_plainly_as_they_are_one_by_one(batches: list[list[dict[str, Any]]]) -> None:
    """States, receipts and the step's later behaviour are the same with and without the fast path."""

    def lived() -> tuple[list[Receipt], dict[Any, Any], dict[int, int | None]]:
        run = LimitsRun()
        receipts = []
        for number, some in enumerate(batches):
            commands = [command(**{"id": f"{number}-{n}", **one}) for n, one in enumerate(some)]
            receipts += run.run(*commands, readings=[TimedReading(number, 3)]).receipts
        return receipts, run.runner.states, run.limits(*range(6))

    short = lived()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandExecution, "_set_plain", lambda *_: False)
        patch.setattr(CommandExecution, "_set_all", _set_one_by_one)
        assert lived() == short


def _set_one_by_one(execution: CommandExecution, sets: PlainSets, now: dt.datetime) -> None:
    for order in sets.separate():
        execution.execute(order, now)
