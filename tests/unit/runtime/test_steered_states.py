"""Controlled states: settings, temporal and broadcast states in whole jobs, and version stamps of outputs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
from domains import TimedReading
from encoded_commands import applied
from limits_step import LimitsRun, Rule, command

from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW

HOUR = dt.timedelta(hours=1)
NOON = NOW.replace(hour=12)


def test_settings_hold_for_the_whole_step() -> None:
    """They hold from the cut, or from an event time on, for records in any order."""
    run = LimitsRun()
    run.run(command("set", {"offset": 5}))
    run.run(command("set", {"offset": 7}, effective_at=NOON.isoformat()))
    run.run(command("set", {"offset": 9}, effective_at=(NOON + HOUR).isoformat()))
    readings = [TimedReading(room, 1, NOON + (room - 2) * HOUR) for room in (4, 0, 3, 1, 2)]
    seen = run.run(readings=readings).output("seen")
    assert {one.room: one.offset for one in seen} == {0: 5, 1: 5, 2: 7, 3: 9, 4: 9}


def test_a_temporal_state_is_read_as_of_the_records_time() -> None:
    """This includes keys first seen when several versions exist."""
    run = LimitsRun()
    run.run(readings=[TimedReading(1, 100, NOON)])
    run.run(command("hold", 7, key="*", effective_at=NOON.isoformat()))
    run.run(command("hold", 5, key="*", effective_at=(NOON - 2 * HOUR).isoformat()))
    for room in (1, 2):
        found = {}
        for hour in (1, -1, 0, -3, -2):
            (seen,) = run.run(readings=[TimedReading(room, 100, NOON + hour * HOUR)]).output("seen")
            found[hour] = seen.limit
        assert found == {-3: 100, -2: 5, -1: 5, 0: 7, 1: 7}


def test_broadcast_state_is_the_same_for_every_key_also_for_later_ones() -> None:
    """A broadcast record is handled once per state, for any number of tasks; one that raises changes nothing."""
    run = LimitsRun(parallelism=4)
    run.read(range(6))
    rules = [Rule("a", 2), Rule("b", 7), Rule("c", 13), Rule("a", 3), Rule("d", 1), Rule("d", 0)]
    result = run.run(command("rules"), rules=rules)
    assert [rule.name for rule in result.output("heard")] == ["a", "b", "a", "d", "d"]
    assert sorted(seen.room for seen in result.output("seen")) == list(range(6))
    assert [letter.stream for letter in result.dead_letters] == ["rules"]
    readings = [TimedReading(room, 1) for room in range(12)]
    result = run.run(command("rules", id="again"), readings=readings)
    assert {seen.total for seen in result.output("seen")} == {10}
    assert msgspec.json.decode(applied(result).details) == {"a": 3, "b": 7}


def test_outputs_can_carry_the_version_they_were_made_under() -> None:
    """It is the newest one in effect for the key or the step; for effective times the one of the record's time."""
    run = LimitsRun(stamped=True)

    def versions(*readings: TimedReading) -> list[int]:
        return [
            seen.control_version
            for reading in readings
            for seen in run.run(readings=[reading]).output("seen")
        ]

    one, two = TimedReading(1, 1), TimedReading(2, 1)
    assert versions(one) == [0]
    run.run(command("set-limit", 5, key=1, version=4))
    assert versions(one, two) == [4, 0]
    run.run(rules=[Rule("a", 2, version=6), Rule("b", 2, version=9, at=NOW + HOUR)])
    assert versions(one, two, TimedReading(1, 1, NOW + 2 * HOUR)) == [6, 6, 9]


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    """Formats are JSON and YAML; the content is kept, so that a replay is the same after the file has changed."""
    run = LimitsRun()
    run.runner.fetched_folder = str(tmp_path / "kept")
    config = tmp_path / "config.yaml"
    config.write_text("offset: 11\n")
    run.runner.allow_read = [str(tmp_path)]
    before = run.runner.copy()
    reload = command("reload-config", {"from": str(config)})
    result = run.run(reload, readings=[TimedReading(1, 1)])
    assert [seen.offset for seen in result.output("seen")] == [11]
    config.write_text("offset: 12\n")
    replay = before.run({"commands": [("c", [reload])], "readings": [("a", [TimedReading(1, 1)])]})
    assert replay.data == result.data


def test_settings_are_told_when_they_change() -> None:
    """One slot reports the settings in force; a micro-batch without changes reports none."""
    run = LimitsRun()

    def told(result: BatchOutcome) -> list[Any]:
        return [msgspec.json.decode(body) for kind, _, _, _, body in result.reports if kind == "settings"]

    assert told(run.run(readings=[TimedReading(1, 1), TimedReading(2, 3)])) == []
    (found,) = told(run.run(command("set", {"offset": 4}), readings=[TimedReading(1, 2)]))
    assert found["offset"] == 4
    assert "rules" not in found, "it is a broadcast state"
    assert told(run.run(readings=[TimedReading(1, 2)])) == []
