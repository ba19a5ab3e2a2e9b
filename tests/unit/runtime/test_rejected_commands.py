"""Commands that cannot be applied: each is rejected with a reason, and others are applied."""

from __future__ import annotations

from pathlib import Path

import pytest
from encoded_commands import final_statuses
from limits_step import LimitsRun, command

from penstock.jobs.settings import RunSettings

UNREADABLE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{broken", "malformed"),
    "no kind": (b'{"id": "x"}', "kind"),
    "too large": (
        command("set-limit", 5, key=1, id="big", issued_by="x" * 10_000),
        "at most 10000 are taken",
    ),
    "two targets": (
        b'{"id": "x", "kind": "trace", "target": {"step": "limits", "key": 1, "all": true}}',
        "more than one",
    ),
}
UNFIT: dict[str, tuple[bytes, str]] = {
    "an unknown kind": (command("explode"), "takes no command 'explode'"),
    "an unknown step": (command("set-limit", 1, key=1, to="nowhere"), "no step 'nowhere'"),
    "a payload of another type": (command("set-limit", "five", key=1), "the payload does not fit"),
    "a key of another type": (command("set-limit", 5, key="one"), "a key that is not of type int64"),
    "keys for a step": (command("rules", key=1), "'rules' is for step or job"),
    "a step for keys": (command("set-limit", 5), "'set-limit' is for key or keys or all"),
    "an unknown state": (command("set", {"limits": 5}, key=1), "no state 'limits'"),
    "an unknown setting": (command("set", {"limit": 5}), "no setting 'limit'"),
    "a wrong value": (command("set", {"offset": "much"}), "the payload does not fit"),
    "nothing to set": (command("set", {}), "names nothing"),
    "a state without a history": (
        command("set", {"limit": 5}, key=1, effective_at="2026-11-21T00:00:00Z"),
        "has no history",
    ),
    "a hook without a handler": (command("load-model", {}), "declares no ps.Model that takes 'load-model'"),
    "a file that the job may not read": (
        command("reload-config", {"from": "/nowhere/at/all.json"}),
        "may not read",
    ),
}


def check_rejection(sent: bytes, reason: str, folder: Path) -> int:
    """Send a command between two valid ones, check that only it is rejected, and return the number of dead
    letters.
    """
    run = LimitsRun()
    run.runner.fetched_folder = str(folder)
    result = run.run(command("set-limit", 5, key=1), sent, command("set-limit", 6, key=2))
    (rejected,) = (receipt for receipt in result.receipts if receipt.status == "REJECTED")
    assert reason in rejected.reason
    assert sorted(final_statuses(result).values()) == ["APPLIED", "APPLIED", "REJECTED"]
    assert run.limits(1, 2) == {1: 5, 2: 6}
    return len(result.dead_letters)


@pytest.mark.parametrize(("sent", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_command_is_rejected_and_a_dead_letter(sent: bytes, reason: str, tmp_path: Path) -> None:
    """The dead letter has its bytes."""
    assert check_rejection(sent, reason, tmp_path) == 1


@pytest.mark.parametrize(("sent", "reason"), UNFIT.values(), ids=UNFIT.keys())
def test_a_command_that_does_not_fit_the_step_is_rejected(sent: bytes, reason: str, tmp_path: Path) -> None:
    """It is no dead letter, since its sender gets the receipt."""
    assert check_rejection(sent, reason, tmp_path) == 0


def test_a_command_of_ten_megabytes_is_refused() -> None:
    """The default limit is in the receipt, with the command's id."""
    run = LimitsRun()
    run.runner.max_command_bytes = RunSettings().max_command_bytes
    result = run.run(command("set-limit", 5, key=1, id="huge", issued_by="x" * 10_000_000))
    assert [(r.id, r.status) for r in result.receipts] == [("huge", "ACCEPTED"), ("huge", "REJECTED")]
    assert "at most 1048576 are taken" in result.receipts[-1].reason
