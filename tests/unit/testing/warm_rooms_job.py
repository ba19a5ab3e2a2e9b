"""A job with all that a harness moves: a control stream, commands, timers by the clock, windows, a side output."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import penstock as ps

__all__ = ["NOON", "Alarm", "Limit", "Reading", "described", "reading"]

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


@dataclass
class Reading:
    room: str
    value: float
    at: dt.datetime


@dataclass
class Limit:
    room: str
    highest: float


@dataclass
class Alarm:
    room: str
    text: str


class Watch(ps.ConnectedProcessFunction):
    """Tells ten seconds later, by the clock, that a room was too warm, unless it is muted."""

    side_outputs: ClassVar = {"heard": Limit}
    limit = ps.ValueState(float)
    readings = ps.ValueState(int)
    patience = ps.Setting(int, 10)

    @ps.on_command("mute")
    def mute(self, reason: str, ctx: ps.CommandContext) -> None:
        self.limit.set(1000.0)
        ctx.reply(reason)

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        if limit.highest < 0:
            raise ValueError("a limit below zero")
        self.limit.set(limit.highest)
        ctx.side_output("heard", limit)

    def process_record(self, reading: Reading, ctx: ps.Context) -> None:
        self.readings.set((self.readings.get() or 0) + 1)
        limit = self.limit.get()
        if limit is not None and reading.value > limit:
            ctx.timers.register(reading.at + dt.timedelta(seconds=self.patience.get()), "warm")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Alarm]:
        yield Alarm(ctx.key, timer.name)


def described(watch: ps.ProcessFunction | None = None, name: str = "watch") -> ps.Job:
    """The job, with another function for its step where one is given."""
    job = ps.Job("warm-rooms", key_groups=8)
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    limits = job.control_stream("limits", schema=Limit)
    connected = readings.key_by("room").connect(limits.key_by("room"))
    alarms = connected.process(name, watch or Watch(), output=Alarm)
    alarms.sink_to("alarms")
    if watch is None:
        alarms.side_output("heard").sink_to("heard")
    readings.key_by("room").window(ps.TumblingWindows("1m")).mean("means", "value").sink_to("means")
    return job


def reading(room: str, value: float, second: int = 0) -> Reading:
    return Reading(room, value, NOON + dt.timedelta(seconds=second))
