"""Handlers that raise: what is rolled back, and what the receipts say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from domains import Reading
from encoded_commands import applied, final_statuses
from limits_step import LimitsRun, Seen, command

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


def test_a_handler_that_raises_undoes_its_key_and_names_the_key_group() -> None:
    """Other keys keep their changes; the dead letter has the command and the traceback."""
    run = LimitsRun()
    run.read(range(4))
    result = run.run(command("set-limit", 13, key=1, id="one"), command("set-limit", 14, key="*", id="all"))
    assert final_statuses(result) == {"one": "DEGRADED", "all": "DEGRADED"}
    one, all_keys = (receipt for receipt in result.receipts if receipt.status == "DEGRADED")
    assert (one.reason, one.keys, len(one.degraded)) == ("ValueError: thirteen", 0, 1)
    assert all_keys.keys == 2
    assert all_keys.reason == "ValueError: fourteen is not for odd rooms"
    assert {msgspec.json.decode(letter.raw)["id"] for letter in result.dead_letters} == {"one", "all"}
    assert all("in set_limit" in letter.reason for letter in result.dead_letters)
    assert {seen.room for seen in result.output("seen")} == {0, 2}
    assert run.limits(0, 1, 2, 3) == {0: 14, 1: 1, 2: 14, 3: 1}


def test_a_handler_of_the_whole_step_goes_through_all_keys() -> None:
    """Each reply has its key; when the handler raises, its changes to all keys are rolled back."""
    run = LimitsRun()
    for room in range(5):
        run.read([room], value=room)
    receipt = applied(run.run(command("add-to-all", 10)))
    assert (receipt.keys, receipt.key_groups) == (5, 8)
    assert sorted(msgspec.json.decode(receipt.details)) == [[room, room + 10] for room in range(5)]
    result = run.run(command("add-to-all", 13))
    assert final_statuses(result) == {"add-to-all-None-13": "DEGRADED"}
    assert run.limits(*range(5)) == {room: room + 10 for room in range(5)}


def test_a_handler_that_raises_at_a_key_leaves_all_tasks_with_the_same_shared_state() -> None:
    """Only the task with the key rolls back its keys; changes that all tasks made before the loop over keys
    stay.
    """
    run = LimitsRun()
    run.read(range(8))
    result = run.run(command("weigh", 3))
    assert final_statuses(result) == {"weigh-None-3": "DEGRADED"}
    assert len(result.dead_letters) == 1
    found = run.read(range(8)).output("seen")
    assert {seen.total for seen in found} == {3}
    limits = {seen.room: seen.limit for seen in found}
    assert limits[3] == 1
    assert set(limits.values()) == {1, 3}


@dataclass
class Share:
    percent: int

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError("more than there is")


class Shares(ps.ConnectedProcessFunction):
    shares = ps.BroadcastState(int, Share)

    def process_control(self, share: Share, ctx: ps.Context) -> None:
        self.shares.put(share.percent, share)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(reading.room, None, 0, sum(self.shares))


@pytest.mark.parametrize("broadcast", [True, False])
def test_a_control_record_that_its_class_refuses_is_a_dead_letter(broadcast: bool) -> None:
    """Columnar formats deliver it to the step; the records around it take effect."""
    job = ps.Job("job", key_groups=8)
    readings = job.data_stream("readings", schema=Reading)
    shares = job.control_stream("shares", schema=Share)
    control = shares.broadcast() if broadcast else shares.key_by("percent")
    readings.key_by("room").connect(control).process("shares", Shares()).sink_to("seen")
    refused = Share(3)
    refused.percent = 300
    result = BatchRunner(job, parallelism=3).run(
        {"shares": [("s", [Share(1), refused, Share(5)])], "readings": [("a", [Reading(7, 1)])]}
    )
    letters = [letter for letter in result.dead_letters if "more than there is" in letter.reason]
    assert [(letter.stream, letter.offset) for letter in letters] == [("shares", 1)]
    if broadcast:
        assert [seen.total for seen in result.output("seen")] == [6]
