"""A step with every kind of control, and runs of it whose micro-batches are replayed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from domains import TimedReading
from encoded_commands import command_to
from replays import run_and_replay

import penstock as ps
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

__all__ = ["Limits", "LimitsRun", "Rule", "Seen", "command", "limits_job", "limits_stream"]


@dataclass
class Rule:
    name: str
    factor: int
    at: dt.datetime | None = None
    version: int | None = None


@dataclass
class Seen:
    room: int
    limit: int | None
    offset: int
    total: int


class Limits(ps.ConnectedProcessFunction):
    """Emits for each reading its room's limit, the step's offset, and the sum of the rules' factors."""

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
            raise ValueError("fourteen is not for odd rooms")
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

    def process_record(self, reading: TimedReading, ctx: ps.Context) -> Iterator[Seen]:
        if self.limit.get() is None and reading.value >= 0:
            self.limit.set(reading.value)
        held = self.held.get()
        limit = self.limit.get() if held is None else held
        yield Seen(reading.room, limit, self.offset.get(), sum(self.rules.values()))


def limits_stream(job: ps.Job) -> ps.ProcessedStream:
    """Return the step's output for a stream of readings, with a broadcast stream of rules."""
    readings = job.data_stream("readings", schema=TimedReading, event_time="at")
    rules = job.control_stream("rules", schema=Rule, effective_at="at", version="version")
    seen = readings.key_by("room").connect(rules.broadcast()).process("limits", Limits())
    seen.side_output("heard").sink_to("heard")
    return seen


def limits_job(*, stamped: bool = False) -> ps.Job:
    job = ps.Job("job", key_groups=8)
    seen = limits_stream(job)
    (seen.stamp_control_version() if stamped else seen).sink_to("seen")
    return job


def command(
    kind: str, payload: Any = None, *, to: str | None = "limits", key: Any = None, **more: Any
) -> bytes:
    """Return a command to the step, or to another target: None is the job."""
    return command_to(to, kind, payload, key=key, **more)


class LimitsRun:
    """A run of the step; each micro-batch is replayed in another order, and must give the same bytes."""

    def __init__(self, *, parallelism: int = 3, stamped: bool = False) -> None:
        self.runner = BatchRunner(limits_job(stamped=stamped), parallelism=parallelism)
        self.runner.max_command_bytes = 10_000

    def run(
        self, *commands: bytes, readings: Sequence[TimedReading] = (), rules: Sequence[Rule] = ()
    ) -> BatchOutcome:
        runs = [
            ("commands", "c", commands),
            ("readings", "a", readings[::2]),
            ("readings", "b", readings[1::2]),
            ("rules", "r", rules),
        ]
        inputs: dict[str, list[tuple[str, Sequence[Any]]]] = {}
        for stream, partition, records in runs:
            if records:
                inputs.setdefault(stream, []).append((partition, records))
        return run_and_replay(self.runner, inputs, seed=1)

    def read(self, rooms: Iterable[int], value: int = 1) -> BatchOutcome:
        """Run a micro-batch with the same reading of some rooms."""
        return self.run(readings=[TimedReading(room, value) for room in rooms])

    def limits(self, *rooms: int) -> dict[int, int | None]:
        """Return the limits of some rooms; a reading below zero sees them without changing them."""
        return {seen.room: seen.limit for seen in self.read(rooms, -1).output("seen")}
