"""State that a slot holds once for its step: only changes are stored, and a worker decodes it once."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from replays import run_and_replay

import penstock as ps
from penstock.control.commands import Command, Target
from penstock.control.receipts import FINAL
from penstock.control.register import Register
from penstock.engine import actions, slot_run
from penstock.engine.actions import StandingCommands
from penstock.engine.slot import Header, header_of, put_header
from penstock.state.shared import SharedStates
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_runner import NOW, BatchRunner
from penstock.testing.memory_entries import MemoryEntries

SECOND = dt.timedelta(seconds=1)


@dataclass
class Visit:
    key: int
    at: dt.datetime


class Visits(ps.ProcessFunction):
    """Counts visits, by rules that the whole step shares."""

    count = ps.ValueState(int)
    note = ps.ValueState(str)
    limit = ps.ValueState(int)
    rules = ps.BroadcastState(str, str)

    def process_record(self, visit: Visit, ctx: ps.Context) -> None:
        assert self.rules.get("r7") is not None
        self.count.set((self.count.get() or 0) + 1)

    @ps.on_command("rule", scope="step")
    def rule(self, name: str, ctx: ps.CommandContext) -> None:
        self.rules.put(name, f"{self.rules.get(name) or ''}{name}")

    @ps.on_command("spoil", scope="key")
    def spoil(self, _: str, ctx: ps.CommandContext) -> None:
        self.note.set("\ud800")


def job_with(ids: int, rules: int = 8) -> BatchRunner:
    """Return an event-time job whose slots hold this many ids, key versions and shared rules."""
    job = ps.Job("visits", key_groups=4)
    marks = ps.Watermarks.monotonous()
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=marks)
    visits.key_by("key").process("visits", Visits())
    made = BatchRunner(job, parallelism=2)
    (node,) = made.plan.graph.steps()
    core = made.plan.core(node)
    register = Register(ids_kept=ids, keys_kept=ids)
    to_key = [command(f"c{n}", Target("visits", key=n), n) for n in range(ids)]
    for one in to_key:
        register.admit(one, NOW)
        register.note_key(one, one.target.key)
    shared = SharedStates(core.shared, None)
    shared.mapping("rules").update({f"r{n}": "rule" * 10 for n in range(rules)})
    header = Header(register=register.dump() if ids else None, shared=shared.dump())
    for slot in made.plan.slot_of:
        tables = SlotTables(core.state_schema, MemoryEntries(made.states.setdefault((node.id, slot), {})))
        put_header(tables, header)
        tables.store()
    return made


def command(command_id: str, target: Target, version: int | None = None, **more: Any) -> Command:
    return Command(id=command_id, kind=more.pop("kind", "set"), target=target, version=version, **more)


def stored_by(job: BatchRunner, inputs: Any) -> int:
    """Return how many bytes a micro-batch stores; its replay by a cold worker must store the same."""
    before = {name: dict(stored) for name, stored in job.states.items()}
    assert [letter.reason for letter in run_and_replay(job, inputs).dead_letters] == []
    job.now += SECOND
    return sum(
        len(content)
        for name, stored in job.states.items()
        for entry, content in stored.items()
        if before.get(name, {}).get(entry) != content
    )


def visits(job: BatchRunner, number: int) -> Any:
    """Return a visit of each of some keys, which moves the watermark."""
    return {"visits": [("p", [Visit(key, job.now + number * SECOND) for key in range(8)])]}


def commands(*given: Command) -> Any:
    return {"commands": [("p", [msgspec.json.encode(one) for one in given])]}


def test_a_watermark_that_moves_costs_the_same_whatever_is_held() -> None:
    """100,000 ids, the versions of as many keys, and many rules are not stored again."""
    small, large = job_with(0), job_with(100_000, rules=5_000)
    for number in range(4):
        inputs = visits(small, number)
        assert stored_by(large, inputs) <= stored_by(small, inputs) + 200


def test_a_command_costs_the_same_whatever_is_held() -> None:
    """Its id and version are stored without the earlier ones; now and then all of them are."""
    large = job_with(20_000)
    taken = []
    for number in range(10):
        new = command(
            f"new-{number}", Target("visits", key=number), 10**9 + number, payload=msgspec.Raw(b'{"limit":1}')
        )
        taken.append(stored_by(large, commands(new)))
    assert sorted(taken)[len(taken) // 2] < 4_000
    again = command("new-3", Target("visits", key=3), payload=msgspec.Raw(b'{"limit":2}'))
    assert large.run(commands(again)).receipts == []
    old = command("old", Target("visits", key=50), 49, payload=msgspec.Raw(b'{"limit":2}'))
    assert large.run(commands(old)).receipts[-1].status == "REJECTED"


def test_the_register_is_stored_whole_when_much_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a cold worker reads few pieces."""
    monkeypatch.setattr("penstock.engine.slot._MAX_PIECES", 5)
    job = job_with(10)
    for number in range(30):
        stored_by(job, commands(command(f"n{number}", Target("visits"), kind="trace")))
        for stored in job.states.values():
            assert sum(name.startswith("part/register/") for name in stored) <= 6
    (node,) = job.plan.graph.steps()
    for stored in job.states.values():
        header = header_of(SlotTables(job.plan.core(node).state_schema, MemoryEntries(stored)))
        register = Register(header.register)
        assert all(register.mark_seen(name) for name in ["c0", "c9", *(f"n{n}" for n in range(30))])


def test_what_is_kept_once_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker does so for all key groups and micro-batches, until it changes."""
    job = job_with(100)
    to_all = command("all", Target("visits", all=True), payload=msgspec.Raw(b'{"limit":5}'))
    job.run(commands(to_all))
    calls: list[str] = []

    def counting(place: Any, name: str) -> None:
        real = getattr(place, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            calls.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(place, name, counted)

    counting(slot_run, "SharedStates")
    counting(slot_run, "register_of")
    counting(slot_run, "_standing_of")
    counting(actions, "action_of")
    for number in range(5):
        inputs = {"visits": [("p", [Visit(key, job.now) for key in range(number * 40, number * 40 + 40)])]}
        job.run(inputs)
        job.now += SECOND
    slots = len(job.plan.slot_of)
    assert [name for name in calls if name != "action_of"] == []
    assert calls.count("action_of") == 5 * slots, "once for all key groups of a slot"
    job.forget()
    job.run(visits(job, 9))
    assert calls.count("SharedStates") == calls.count("_standing_of") == slots
    assert "register_of" not in calls, "data does not need it"


def test_a_state_that_cannot_be_stored_leaves_no_trace_in_what_is_kept() -> None:
    """Control is then reloaded from storage, so that changes to shared states and ids are not applied twice."""
    job = job_with(3)
    job.run(visits(job, 0))
    rule = command("rule", Target("visits"), kind="rule", payload=msgspec.Raw(b'"good"'))
    spoil = command("spoil", Target("visits", key=1), kind="spoil", payload=msgspec.Raw(b'""'))
    replayed = job.copy()
    found = job.run(commands(rule, spoil)).receipts
    finals = [(r.id, r.status) for r in found if r.status in FINAL]
    assert finals == [("rule", "APPLIED"), ("spoil", "DEGRADED")]
    assert job.run(commands(rule)).receipts == []
    replayed.run(commands(rule, spoil))
    replayed.run(commands(rule))
    assert replayed.states == job.states
    (node,) = job.plan.graph.steps()
    core = job.plan.core(node)
    for stored in job.states.values():
        header = header_of(SlotTables(core.state_schema, MemoryEntries(stored)))
        assert SharedStates(core.shared, header.shared).mapping("rules")["good"] == "good"


def test_standing_commands_are_stored_when_they_change() -> None:
    """A command to all keys is stored once, and other commands do not store it again."""
    job = job_with(0)
    first = stored_by(
        job, commands(command("a", Target("visits", all=True), payload=msgspec.Raw(b'{"limit":5}')))
    )
    assert first > 0
    places = [
        {name for name in stored if name.startswith("part/standing/")} for stored in job.states.values()
    ]
    assert all(len(found) == 1 for found in places)
    stored_by(job, commands(command("b", Target("visits", key=1), payload=msgspec.Raw(b'{"limit":5}'))))
    assert places == [
        {name for name in stored if name.startswith("part/standing/")} for stored in job.states.values()
    ]
    (node,) = job.plan.graph.steps()
    for stored in job.states.values():
        header = header_of(SlotTables(job.plan.core(node).state_schema, MemoryEntries(stored)))
        assert [
            admitted.command.id for admitted in StandingCommands.of(header.standing).commands.values()
        ] == ["a"]
