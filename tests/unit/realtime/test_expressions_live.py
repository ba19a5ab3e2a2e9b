"""Expressions in real time: conditions and selections on records, and parameters that commands change."""

from __future__ import annotations

from pathlib import Path

import pytest
from domains import Counted, Reading
from encoded_commands import command_to
from live_runner import LiveRunner

import penstock as ps


def warm_job(*, keyed: bool) -> ps.Job:
    job = ps.Job("warm", key_groups=8)
    readings = job.data_stream("readings", schema=Reading).where("value <> 5 and 10 / value > 0")
    settings = {"limit": ps.Setting(int, 3)}
    if keyed:
        warm = readings.key_by("room").where("value > ${limit}", settings=settings, name="warm")
        counted = warm.select("room AS key", "cast(value as bigint) AS count").process(
            "on", PassOn(), output=Counted
        )
    else:
        counted = readings.where("value > ${limit}", settings=settings, name="warm").select(
            "room AS key", "cast(value as bigint) AS count"
        )
    counted.sink_to("warm")
    return job


class PassOn(ps.ProcessFunction):
    def process_record(self, record: Counted, ctx: ps.Context) -> list[Counted]:
        return [record]


@pytest.mark.parametrize("keyed", [False, True])
def test_a_parameter_changes_while_records_come(tmp_path: Path, keyed: bool) -> None:
    """The new value holds after the command's cut; a record for which a condition raises is a dead letter."""
    with LiveRunner(warm_job(keyed=keyed), tmp_path, 2) as live:
        emitted = 5

        def during() -> None:
            nonlocal emitted
            live.send("readings", *({"room": number % 3, "value": number} for number in range(10)))
            live.await_written("warm", emitted)
            live.send("commands", command_to("warm", "set", {"limit": 100}))
            while True:
                # Of one room, so that a slot which emits the second has already emitted or dropped the first.
                live.send("readings", {"room": 1, "value": 50}, {"room": 1, "value": 200})
                emitted += 1
                live.await_written("warm", emitted)
                last = [one.count for one in live.emitted("warm")]
                if last.count(200) > last.count(50):
                    return
                emitted = max(emitted, len(last))

        outcome = live.run(during)
    found = [one.count for one in outcome.outputs["warm"]]
    assert sorted(found)[:5] == [4, 6, 7, 8, 9]
    assert found.count(200) > found.count(50)
    assert [receipt.status for receipt in outcome.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    (letter,) = outcome.dead_letters
    assert letter.reason == "the expression 'value <> 5 and 10 / value > 0' has no value: divide by zero"
