"""Commands in whole jobs, without Spark: what they do to which keys, what becomes of them, and that replays agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.control.admitted_commands import PlainSets
from penstock.control.receipts import FINAL, Receipt
from penstock.engine.command_execution import CommandExecution
from penstock.jobs.settings import RunSettings
from penstock.state.state_spec import fill_defaults
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner

UTC = dt.UTC


@dataclass
class Reading:
    sensor: int
    value: int
    at: dt.datetime = NOW


@dataclass
class Rule:
    name: str
    factor: int
    at: dt.datetime | None = None
    version: int | None = None


@dataclass
class Seen:
    sensor: int
    limit: int | None
    offset: int
    total: int


class Limits(ps.ConnectedProcessFunction):
    """Tells for each reading what it knows: its key's limit, the step's offset, the sum of the rules' factors."""

    side_outputs: ClassVar = {"heard": Rule}
    limit = ps.ValueState(int)
    held = ps.TemporalState(int)
    offset = ps.Setting(int, 0)
    rules = ps.BroadcastState(str, int)

    def __init__(self) -> None:
        self.cached = 0

    def clear_cache(self) -> None:
        if self.cached == 13:
            raise OSError("thirteen")
        self.cached = 0

    @ps.on_command("set-limit")
    def set_limit(self, limit: int, ctx: ps.CommandContext) -> Iterator[Seen]:
        self.limit.set(limit)
        if limit == 13:
            raise ValueError("thirteen")
        if limit == 14 and ctx.key % 2:
            raise ValueError("fourteen is not for odd sensors")
        yield Seen(ctx.key, limit, self.offset.get(), -1)

    @ps.on_command("hold")
    def hold(self, value: int, ctx: ps.CommandContext) -> None:
        self.held.set(value)

    @ps.on_command("once", new_keys=False)
    def once(self, value: int, ctx: ps.CommandContext) -> None:
        self.limit.set(value)

    @ps.on_command("add-to-all", scope="step")
    def add_to_all(self, more: int, ctx: ps.CommandContext) -> None:
        for _ in ctx.keys():
            self.limit.set((self.limit.get() or 0) + more)
            ctx.reply(self.limit.get())
        if more == 13:
            raise ValueError("thirteen")

    @ps.on_command("weigh", scope="step")
    def weigh(self, weight: int, ctx: ps.CommandContext) -> None:
        self.rules.put("weight", weight)
        for key in ctx.keys():
            self.limit.set(weight)
            if key == weight:
                raise ValueError(f"not at {key}")

    @ps.on_command("rules", scope="step")
    def tell_rules(self, payload: None, ctx: ps.CommandContext) -> None:
        ctx.reply(dict(self.rules.items()))

    def process_control(self, rule: Rule, ctx: ps.Context) -> Iterator[Seen]:
        if rule.factor == 13:
            self.rules.put("bad", 13)
            raise ValueError("thirteen")
        if rule.factor == 0:
            self.rules.remove(rule.name)
        else:
            self.rules.put(rule.name, rule.factor)
        ctx.side_output("heard", rule)
        for key in ctx.keys():
            if rule.factor == 7:
                yield Seen(key, self.limit.get(), self.offset.get(), 7)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        if self.limit.get() is None and reading.value >= 0:
            self.limit.set(reading.value)
        held = self.held.get()
        limit = self.limit.get() if held is None else held
        yield Seen(reading.sensor, limit, self.offset.get(), sum(self.rules.values()))


def job(*, stamped: bool = False) -> ps.Job:
    made = ps.Job("job", key_groups=8)
    readings = made.data_stream("readings", schema=Reading, event_time="at")
    rules = made.control_stream("rules", schema=Rule, effective_at="at", version="version")
    seen = readings.key_by("sensor").connect(rules.broadcast()).process("limits", Limits())
    if stamped:
        seen.side_output("heard").sink_to("heard")
        seen.stamp_control_version().sink_to("seen")
    else:
        seen.side_output("heard").sink_to("heard")
        seen.sink_to("seen")
    return made


def command(kind: str, payload: Any = None, *, to: str = "limits", key: Any = None, **more: Any) -> bytes:
    """A command; without an id it has one that says what it is."""
    target: dict[str, Any] = {} if to == "job" else {"step": to}
    if key == "*":
        target["all"] = True
    elif isinstance(key, list):
        target["keys"] = key
    elif key is not None:
        target["key"] = key
    found = {"id": f"{kind}-{key}-{payload}", "kind": kind, "target": target, "payload": payload, **more}
    return msgspec.json.encode(found)


class Driver:
    """Runs micro-batches, each also in another order of everything, and insists on the same bytes."""

    def __init__(self, *, partitions: int = 3, stamped: bool = False) -> None:
        self.job = BatchRunner(job(stamped=stamped), parallelism=partitions)
        self.job.max_command_bytes = 10_000

    def run(self, *commands: bytes, readings: list[Reading] = (), rules: list[Rule] = ()) -> BatchOutcome:  # type: ignore[assignment]
        inputs = {
            "commands": [("c", list(commands))],
            "readings": [("a", readings[::2]), ("b", readings[1::2])],
            "rules": [("r", rules)],
        }
        inputs = {name: [run for run in runs if run[1]] for name, runs in inputs.items()}
        again = self.job.copy()
        result = self.job.run(inputs, seed=1)
        replay = again.run(inputs, seed=2)
        assert (replay.data, replay.receipts) == (result.data, result.receipts)
        assert again.states == self.job.states
        return result

    def limits(self, *sensors: int) -> dict[int, int | None]:
        """What the step knows of some sensors."""
        result = self.run(readings=[Reading(sensor, -1) for sensor in sensors])
        return {seen.sensor: seen.limit for seen in result.output("seen")}


def outcome(result: BatchOutcome) -> dict[str, str]:
    """The last status of each command."""
    return {receipt.id: receipt.status for receipt in result.receipts}


def test_a_command_reaches_one_some_or_all_keys() -> None:
    """Whether they have data or not, and says how many it reached; keys that were never seen are keys too."""
    driver = Driver()
    driver.run(readings=[Reading(sensor, 1) for sensor in range(20)])
    result = driver.run(
        command("set-limit", 5, key=3), command("set-limit", 6, key=[4, 99]), command("once", 2, key=[5])
    )
    assert set(outcome(result).values()) == {"APPLIED"}
    assert {seen.sensor: seen.limit for seen in result.output("seen")} == {3: 5, 4: 6, 99: 6}
    assert driver.limits(2, 3, 4, 5, 99) == {2: 1, 3: 5, 4: 6, 5: 2, 99: 6}
    result = driver.run(command("set-limit", 8, key="*"))
    (applied,) = (receipt for receipt in result.receipts if receipt.status == "APPLIED")
    assert (applied.keys, applied.key_groups) == (21, 8)
    assert driver.limits(*range(20), 99) == dict.fromkeys([*range(20), 99], 8)


def test_a_key_that_is_seen_later_gets_what_all_got() -> None:
    """The newest of each kind, in the order of their cuts; not of kinds that are only for keys that are there."""
    driver = Driver()
    driver.run(
        command("set-limit", 8, key="*"), command("set", {"limit": 9}, key="*"), command("once", 1, key="*")
    )
    assert driver.limits(1, 2) == {1: 9, 2: 9}
    driver.run(command("set-limit", 10, key="*"))
    assert driver.limits(1, 2, 3) == {1: 10, 2: 10, 3: 10}


def test_an_id_counts_once_and_versions_do_not_go_back() -> None:
    """Whatever key or kind of delivery; a duplicate has no second receipt, also not in a later micro-batch."""
    driver = Driver()
    first = driver.run(
        command("set-limit", 5, key=1, id="a", version=3),
        command("set-limit", 6, key=1, id="a", version=4),
        command("set-limit", 7, key=1, id="b", version=2),
        command("set-limit", 7, key=2, id="c", version=2),
        command("set-limit", 9, key="*", id="d", version=3),
    )
    assert outcome(first) == {"a": "APPLIED", "b": "REJECTED", "c": "APPLIED", "d": "APPLIED"}
    (stale,) = (receipt.reason for receipt in first.receipts if receipt.status == "REJECTED")
    assert stale == "version 2 is stale: version 3 has been applied"
    again = driver.run(
        command("set-limit", 50, key=1, id="a", version=30), command("set-limit", 1, key=5, id="e", version=1)
    )
    assert outcome(again) == {"e": "REJECTED"}
    assert driver.limits(1, 2) == {1: 9, 2: 9}


def test_an_expired_command_is_rejected() -> None:
    """By the time of the micro-batch, which a replay has too."""
    driver = Driver()
    before, after = NOW - dt.timedelta(seconds=1), NOW + dt.timedelta(seconds=1)
    result = driver.run(
        command("set-limit", 5, key=1, id="late", expires_at=before.isoformat()),
        command("set-limit", 5, key=1, id="early", expires_at=after.isoformat()),
    )
    assert outcome(result) == {"late": "REJECTED", "early": "APPLIED"}


POISON: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{broken", "malformed"),
    "no kind": (b'{"id": "x"}', "kind"),
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
    "a history that is none": (
        command("set", {"limit": 5}, key=1, effective_at="2026-11-21T00:00:00Z"),
        "has no history",
    ),
    "too large": (
        command("set-limit", 5, key=1, id="big", issued_by="x" * 10_000),
        "at most 10000 are taken",
    ),
    "a hook without a handler": (command("load-model", {}), "no handler for 'load-model'"),
    "a file that the job may not read": (
        command("reload-config", {"from": "/nowhere/at/all.json"}),
        "may not read",
    ),
    "two targets": (
        b'{"id": "x", "kind": "trace", "target": {"step": "limits", "key": 1, "all": true}}',
        "more than one",
    ),
}


@pytest.mark.parametrize("poison", POISON)
def test_poison_is_rejected_with_its_reason(poison: str, tmp_path: Any) -> None:
    """And only that: what stands around it is applied."""
    data, reason = POISON[poison]
    driver = Driver()
    driver.job.fetched_folder = str(tmp_path)
    result = driver.run(command("set-limit", 5, key=1), data, command("set-limit", 6, key=2))
    rejected = [receipt for receipt in result.receipts if receipt.status == "REJECTED"]
    assert len(rejected) == 1
    assert reason in rejected[0].reason
    assert sorted(outcome(result).values()) == ["APPLIED", "APPLIED", "REJECTED"]
    assert driver.limits(1, 2) == {1: 5, 2: 6}
    malformed = poison in ("no JSON", "no kind", "too large", "two targets")
    assert len(result.dead_letters) == (1 if malformed else 0)


def test_a_handler_that_raises_undoes_its_key_and_names_the_key_group() -> None:
    """The others keep what was done; the dead letter has the command and the traceback."""
    driver = Driver()
    driver.run(readings=[Reading(sensor, 1) for sensor in range(4)])
    result = driver.run(
        command("set-limit", 13, key=1, id="one"), command("set-limit", 14, key="*", id="all")
    )
    assert outcome(result) == {"one": "DEGRADED", "all": "DEGRADED"}
    one, all_keys = (receipt for receipt in result.receipts if receipt.status == "DEGRADED")
    assert (one.reason, one.keys, len(one.degraded)) == ("ValueError: thirteen", 0, 1)
    assert all_keys.keys == 2
    assert all_keys.reason == "ValueError: fourteen is not for odd sensors"
    assert {msgspec.json.decode(letter.raw)["id"] for letter in result.dead_letters} == {"one", "all"}
    assert all("in set_limit" in letter.reason for letter in result.dead_letters)
    assert {seen.sensor for seen in result.output("seen")} == {0, 2}
    assert driver.limits(0, 1, 2, 3) == {0: 14, 1: 1, 2: 14, 3: 1}


def test_a_handler_of_the_whole_step_goes_through_all_keys() -> None:
    """Each reply is told with its key; when it raises, nothing of it is left on any key."""
    driver = Driver()
    driver.run(readings=[Reading(sensor, sensor) for sensor in range(5)])
    result = driver.run(command("add-to-all", 10))
    (applied,) = (receipt for receipt in result.receipts if receipt.status == "APPLIED")
    assert (applied.keys, applied.key_groups) == (5, 8)
    assert sorted(msgspec.json.decode(applied.details)) == [[sensor, sensor + 10] for sensor in range(5)]
    result = driver.run(command("add-to-all", 13))
    assert outcome(result) == {"add-to-all-None-13": "DEGRADED"}
    assert driver.limits(*range(5)) == {sensor: sensor + 10 for sensor in range(5)}


def test_a_handler_that_raises_at_a_key_leaves_all_tasks_with_the_same_shared_state() -> None:
    """Only the task that has the key undoes what was done to its keys; what all did before they came to keys stays."""
    driver = Driver()
    driver.run(readings=[Reading(sensor, 1) for sensor in range(8)])
    result = driver.run(command("weigh", 3))
    assert outcome(result) == {"weigh-None-3": "DEGRADED"}
    assert len(result.dead_letters) == 1
    found = driver.run(readings=[Reading(sensor, 1) for sensor in range(8)]).output("seen")
    assert {seen.total for seen in found} == {3}
    limits = {seen.sensor: seen.limit for seen in found}
    assert limits[3] == 1
    assert set(limits.values()) == {1, 3}


def test_a_command_of_ten_megabytes_is_refused() -> None:
    """By default, with a receipt that says the limit and the command's own id."""
    driver = Driver()
    driver.job.max_command_bytes = RunSettings().max_command_bytes
    result = driver.run(command("set-limit", 5, key=1, id="huge", issued_by="x" * 10_000_000))
    assert [(r.id, r.status) for r in result.receipts] == [("huge", "ACCEPTED"), ("huge", "REJECTED")]
    assert "at most 1048576 are taken" in result.receipts[-1].reason


def test_settings_hold_for_the_whole_step() -> None:
    """At the cut, or from an event time on, for records in any order."""
    driver = Driver()
    noon = NOW.replace(hour=12)
    times = [noon + dt.timedelta(hours=hours) for hours in (-2, -1, 0, 1, 2)]
    driver.run(command("set", {"offset": 5}))
    driver.run(command("set", {"offset": 7}, effective_at=noon.isoformat()))
    driver.run(command("set", {"offset": 9}, effective_at=times[3].isoformat()))
    result = driver.run(readings=[Reading(number, 1, times[number]) for number in (4, 0, 3, 1, 2)])
    assert {seen.sensor: seen.offset for seen in result.output("seen")} == {0: 5, 1: 5, 2: 7, 3: 9, 4: 9}


def test_a_temporal_state_is_read_as_of_the_records_time() -> None:
    """Also by keys that are first seen when several versions hold already."""
    driver = Driver()
    noon = NOW.replace(hour=12)
    driver.run(readings=[Reading(1, 100, noon)])
    driver.run(command("hold", 7, key="*", effective_at=noon.isoformat()))
    driver.run(command("hold", 5, key="*", effective_at=(noon - dt.timedelta(hours=2)).isoformat()))
    hours = (1, -1, 0, -3, -2)
    for sensor in (1, 2):
        found = {}
        for hour in hours:
            (seen,) = driver.run(readings=[Reading(sensor, 100, noon + dt.timedelta(hours=hour))]).output(
                "seen"
            )
            found[hour] = seen.limit
        assert found == {-3: 100, -2: 5, -1: 5, 0: 7, 1: 7}


def test_broadcast_state_is_the_same_for_every_key_also_for_later_ones() -> None:
    """A broadcast record is heard once, whatever the number of tasks; one that raises leaves nothing behind."""
    driver = Driver(partitions=4)
    driver.run(readings=[Reading(sensor, 1) for sensor in range(6)])
    result = driver.run(
        command("rules"),
        rules=[Rule("a", 2), Rule("b", 7), Rule("c", 13), Rule("a", 3), Rule("d", 1), Rule("d", 0)],
    )
    assert [rule.name for rule in result.output("heard")] == ["a", "b", "a", "d", "d"]
    assert sorted(seen.sensor for seen in result.output("seen")) == list(range(6))
    assert [letter.stream for letter in result.dead_letters] == ["rules"]
    result = driver.run(command("rules", id="again"), readings=[Reading(sensor, 1) for sensor in range(12)])
    assert {seen.total for seen in result.output("seen")} == {10}
    (applied,) = (receipt for receipt in result.receipts if receipt.status == "APPLIED")
    assert msgspec.json.decode(applied.details) == {"a": 3, "b": 7}


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
        yield Seen(reading.sensor, None, 0, sum(self.shares))


@pytest.mark.parametrize("broadcast", [True, False])
def test_a_control_record_that_its_class_refuses_is_a_dead_letter(broadcast: bool) -> None:
    """Columnar formats bring it as far as the step; the records around it take effect."""
    made = ps.Job("job", key_groups=8)
    readings = made.data_stream("readings", schema=Reading)
    shares = made.control_stream("shares", schema=Share)
    control = shares.broadcast() if broadcast else shares.key_by("percent")
    readings.key_by("sensor").connect(control).process("shares", Shares()).sink_to("seen")
    refused = Share(3)
    refused.percent = 300
    result = BatchRunner(made, parallelism=3).run(
        {"shares": [("s", [Share(1), refused, Share(5)])], "readings": [("a", [Reading(7, 1)])]}
    )
    letters = [letter for letter in result.dead_letters if "more than there is" in letter.reason]
    assert [(letter.stream, letter.offset) for letter in letters] == [("shares", 1)]
    if broadcast:
        assert [seen.total for seen in result.output("seen")] == [6]


def test_a_paused_step_holds_its_data_in_order() -> None:
    """Nothing is lost; controls still take effect; after resume it is as if the data had come then."""
    driver = Driver()
    assert not driver.run(command("pause"), readings=[Reading(1, 1)]).output("seen")
    assert not driver.run(readings=[Reading(1, 2), Reading(2, 3)]).output("seen")
    driver.run(command("set", {"offset": 4}), rules=[Rule("a", 2)])
    result = driver.run(command("trace", to="job"))
    (trace,) = msgspec.json.decode(result.receipts[-1].details)
    assert trace["paused"]
    result = driver.run(command("resume"), readings=[Reading(3, 5)])
    found = [(seen.sensor, seen.limit, seen.offset, seen.total) for seen in result.output("seen")]
    assert sorted(found) == [(1, 1, 4, 2), (1, 1, 4, 2), (2, 3, 4, 2), (3, 5, 4, 2)]
    assert not driver.run().output("seen")


def test_a_trace_tells_what_a_step_is_and_did() -> None:
    """It comes behind the data of its micro-batch."""
    driver = Driver()
    driver.run(command("set", {"offset": 3}), rules=[Rule("a", 2)])
    result = driver.run(command("trace", to="job"), readings=[Reading(sensor, 1) for sensor in range(7)])
    (trace,) = msgspec.json.decode(result.receipts[-1].details)
    assert (trace["step"], trace["keys"], trace["records"], trace["paused"]) == ("limits", 7, 7, False)
    assert trace["settings"] == {"offset": 3, "rules": 1}


def test_outputs_can_carry_the_version_they_were_made_under() -> None:
    """The newest that took effect for the key or the step; for effective times the one of the record's time."""
    driver = Driver(stamped=True)

    def versions(*readings: Reading) -> list[int]:
        return [
            seen.control_version
            for reading in readings
            for seen in driver.run(readings=[reading]).output("seen")
        ]

    assert versions(Reading(1, 1)) == [0]
    driver.run(command("set-limit", 5, key=1, version=4))
    assert versions(Reading(1, 1), Reading(2, 1)) == [4, 0]
    driver.run(rules=[Rule("a", 2, version=6), Rule("b", 2, version=9, at=NOW + dt.timedelta(hours=1))])
    later = NOW + dt.timedelta(hours=2)
    assert versions(Reading(1, 1), Reading(2, 1), Reading(1, 1, later)) == [6, 6, 9]


def test_the_cache_is_cleared_in_every_worker() -> None:
    """A worker that sees the slot next finds out by itself."""
    driver = Driver()
    function = driver.job.plan.graph.steps()[0].function
    function.cached = 5
    driver.run(command("clear-cache"))
    driver.run(readings=[Reading(1, 1)])
    assert outcome(driver.run(command("clear-cache", id="again"))) == {"again": "APPLIED"}
    assert function.cached == 0
    # What raises here does so in this worker, and would not in another.
    function.cached = 13
    third = driver.job.run({"commands": [("c", [command("clear-cache", id="third")])]})
    assert outcome(third) == {"third": "DEGRADED"}
    result = driver.job.run({"commands": [("c", [command("set-limit", 5, key=1)])]})
    assert outcome(result) == {"set-limit-1-5": "APPLIED"}
    assert all("thirteen" in letter.reason for letter in result.dead_letters)


def test_settings_come_from_a_file(tmp_path: Any) -> None:
    """JSON or YAML; what was read is kept, so that a replay sees the same when the file has changed."""
    driver = Driver()
    driver.job.fetched_folder = str(tmp_path / "kept")
    config = tmp_path / "config.yaml"
    config.write_text("offset: 11\n")
    driver.job.allow_read = [str(tmp_path)]
    before = driver.job.copy()
    result = driver.run(command("reload-config", {"from": str(config)}), readings=[Reading(1, 1)])
    assert [seen.offset for seen in result.output("seen")] == [11]
    config.write_text("offset: 12\n")
    inputs = {
        "commands": [("c", [command("reload-config", {"from": str(config)})])],
        "readings": [("a", [Reading(1, 1)])],
    }
    assert before.run(inputs).data == result.data


@dataclass
class Count:
    limit: int
    times: int


class Counter(ps.ProcessFunction):
    """Counts what an earlier step says, under another key."""

    times = ps.ValueState(int)
    step = ps.Setting(int, 1)

    def process_record(self, seen: Seen, ctx: ps.Context) -> Iterator[Count]:
        self.times.set((self.times.get() or 0) + self.step.get())
        yield Count(ctx.key, self.times.get() or 0)


def chain() -> ps.Job:
    made = ps.Job("chain", key_groups=8)
    readings = made.data_stream("readings", schema=Reading, event_time="at")
    rules = made.control_stream("rules", schema=Rule, effective_at="at", version="version")
    seen = readings.key_by("sensor").connect(rules.broadcast()).process("limits", Limits())
    seen.side_output("heard").sink_to("heard")
    seen.key_by("total").process("counter", Counter()).sink_to("counts")
    return made


def test_a_trace_goes_through_all_steps_behind_the_data() -> None:
    """Also steps behind other keyed steps: each tells what it has processed with this micro-batch, in their order."""
    job = BatchRunner(chain(), parallelism=3)
    readings = [Reading(sensor, 1) for sensor in range(9)]
    commands = [
        command("set", {"step": 5}, to="counter"),
        command("trace", to="job"),
        command("pause", to="job"),
        command("resume", to="limits"),
    ]
    result = job.run(
        {"commands": [("c", commands)], "readings": [("a", readings)], "rules": [("r", [Rule("x", 4)])]}
    )
    traced = next(receipt for receipt in result.receipts if receipt.details)
    first, second = msgspec.json.decode(traced.details)
    assert (first["step"], first["level"], first["keys"], first["records"], first["paused"]) == (
        "limits",
        0,
        9,
        9,
        False,
    )
    assert (second["step"], second["level"], second["keys"], second["paused"]) == ("counter", 1, 0, True)
    assert (first["settings"], second["settings"]) == ({"offset": 0, "rules": 1}, {"step": 5})
    result = job.run({"commands": [("c", [command("resume", to="job"), command("trace", id="2", to="job")])]})
    assert [count.times for count in result.output("counts")] == [5 * n for n in range(1, 10)]
    traced = next(receipt for receipt in result.receipts if receipt.details)
    _, second = msgspec.json.decode(traced.details)
    assert (second["keys"], second["records"], second["paused"]) == (1, 9, False)


@dataclass
class Listed:
    name: str
    weight: int = 3


def test_a_payload_has_its_defaults_wherever_it_goes() -> None:
    """Fields that a sender leaves out are kept, stored and replied like others."""
    found = fill_defaults(msgspec.json.decode(b'[{"name": "x"}]', type=list[Listed]))
    assert msgspec.to_builtins(found) == [{"name": "x", "weight": 3}]


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
    """States, receipts and what the step then knows are the same without the short way."""

    def lived() -> tuple[list[Receipt], dict[Any, Any], dict[int, int | None]]:
        driver = Driver()
        receipts = []
        for number, some in enumerate(batches):
            commands = [command(**{"id": f"{number}-{n}", **one}) for n, one in enumerate(some)]
            receipts += driver.run(*commands, readings=[Reading(number, 3)]).receipts
        return receipts, driver.job.states, driver.limits(*range(6))

    short = lived()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandExecution, "_set_plain", lambda *_: False)
        patch.setattr(CommandExecution, "_set_all", _set_one_by_one)
        assert lived() == short


def test_a_command_that_is_malformed_has_its_place_among_others() -> None:
    """Its id counts from where it stands: a good one of the same id before it is applied, and one behind it is not."""
    driver = Driver()
    first, malformed, again = (
        command("set", {"limit": 1}, key=1, id="one"),
        b'{"id": "two", "kind": 5}',
        command("set", {"limit": 2}, key=2, id="two"),
    )
    receipts = driver.run(first, malformed, again, command("set", {"limit": 3}, key=3, id="three")).receipts
    ends = {receipt.id: receipt.status for receipt in receipts if receipt.status in FINAL}
    assert ends == {"one": "APPLIED", "two": "REJECTED", "three": "APPLIED"}
    assert driver.limits(1, 2, 3) == {1: 1, 2: None, 3: 3}
    ends = {
        receipt.id: receipt.status
        for receipt in driver.run(
            command("set", {"limit": 4}, key=2, id="x"), b'{"id": "x", "kind": 5}'
        ).receipts
        if receipt.status in FINAL
    }
    assert ends == {"x": "APPLIED"}
    assert driver.limits(2) == {2: 4}


def _set_one_by_one(execution: CommandExecution, sets: PlainSets, now: dt.datetime) -> None:
    for order in sets.separate():
        execution.command(order, now)


def test_settings_are_told_when_they_change() -> None:
    """Once, by one slot, as they are in force; a micro-batch that changes none tells none."""
    driver = Driver()

    def told(result: Any) -> list[Any]:
        return [msgspec.json.decode(body) for kind, name, _, _, body in result.reports if kind == "settings"]

    assert told(driver.run(readings=[Reading(1, 1), Reading(2, 3)])) == []
    (found,) = told(driver.run(command("set", {"offset": 4}), readings=[Reading(1, 2)]))
    assert found["offset"] == 4
    assert "rules" not in found, "it is a broadcast state"
    assert told(driver.run(readings=[Reading(1, 2)])) == []
