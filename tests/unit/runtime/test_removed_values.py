"""Removed values: null removes a temporal state's value, and a key without other values holds nothing."""

from __future__ import annotations

from domains import TimedReading
from encoded_commands import applied, final_statuses
from limits_step import LimitsRun, command

from penstock.testing.batch_runner import NOW


def test_null_takes_the_value_out_of_a_temporal_state() -> None:
    """A command to all keys no longer reaches the key, until it comes back."""
    run = LimitsRun()
    run.run(command("set", {"held": 5}, key=7))
    assert applied(run.run(command("set", {"held": 6}, key="*", id="first"))).keys == 1
    run.run(command("set", {"held": None}, key=7))
    assert applied(run.run(command("set", {"held": 8}, key="*", id="second"))).keys == 0
    assert run.limits(7) == {7: 8}


def test_null_leaves_what_holds_from_a_later_time_on() -> None:
    """Only the initial value is removed; a null that holds from a time on stays, since earlier times may come."""
    run = LimitsRun()
    run.run(command("set", {"held": 5}, key=7))
    run.run(command("set", {"held": 6}, key=7, effective_at=NOW.isoformat()))
    run.run(command("set", {"held": None}, key=7))
    assert run.limits(7) == {7: 6}
    assert applied(run.run(command("set", {"held": None}, key="*", id="all"))).keys == 1
    run.run(command("set", {"held": None}, key=7, id="from then", effective_at=NOW.isoformat()))
    result = run.run(readings=[TimedReading(7, -1)])
    assert [seen.limit for seen in result.output("seen")] == [None]


def test_ids_that_are_too_long_have_a_receipt_each() -> None:
    """They have the positions of their commands, and a command whose id is a prefix is not confused with them."""
    run = LimitsRun()
    long = "x" * 128
    for offset, end in enumerate(("a", "b")):
        result = run.run(command("set-limit", 5, key=1, id=long + end))
        assert final_statuses(result) == {f"commands/c/{offset}": "REJECTED"}
        reason = result.receipts[-1].reason
        assert reason == f"the id is longer than 128 bytes; it begins with '{'x' * 64}'"
    assert final_statuses(run.run(command("set-limit", 5, key=1, id=long))) == {long: "APPLIED"}
