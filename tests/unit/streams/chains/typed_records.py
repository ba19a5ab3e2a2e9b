"""Records and functions of the chains that type checkers are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import penstock as ps


@dataclass
class Reading:
    room: int
    value: float


@dataclass
class Limit:
    room: int
    highest: float


@dataclass
class Alarm:
    room: int
    excess: float


def doubled(reading: Reading) -> Reading:
    return Reading(reading.room, reading.value * 2)


def alarm_of(reading: Reading) -> Alarm:
    return Alarm(reading.room, reading.value)


def twice(reading: Reading) -> list[Alarm]:
    return [alarm_of(reading)] * 2


def is_high(reading: Reading) -> bool:
    return reading.value > 30


def is_urgent(alarm: Alarm) -> bool:
    return alarm.excess > 5


def room_of(reading: Reading) -> int:
    return reading.room


def name_of(limit: Limit) -> str:
    return str(limit.room)


def number_of(limit: Limit) -> int | None:
    return limit.room or None


def higher(one: Reading, other: Reading) -> Reading:
    return max(one, other, key=lambda reading: reading.value)


class Judge(ps.ProcessFunction):
    """Names its parameters as it likes, as all functions may."""

    side_outputs = {"limits": Limit}

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        yield alarm_of(reading)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None: ...


class Escalate(ps.ProcessFunction):
    def process_record(self, alarm: Alarm, ctx: ps.Context) -> list[Alarm] | None:
        return [alarm]


class Silent(ps.ProcessFunction):
    side_outputs = {"alarms": Alarm}

    def process_record(self, record: Reading, ctx: ps.Context) -> None:
        ctx.side_output("alarms", alarm_of(record))


class Vectorised(ps.ProcessFunction):
    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        return records


class Watch(ps.ConnectedProcessFunction):
    def process_control(self, limit: Limit, ctx: ps.Context) -> None: ...

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        yield alarm_of(reading)


class Highest(ps.AggregateFunction[Reading, float, float]):
    def create_accumulator(self) -> float:
        return 0.0

    def add(self, reading: Reading, highest: float) -> float:
        return max(reading.value, highest)

    def get_result(self, highest: float) -> float:
        return highest


class First(ps.WindowFunction):
    def process(self, room: int, readings: Sequence[Reading], ctx: ps.WindowContext) -> Iterator[Alarm]:
        yield alarm_of(readings[0])


class Told(ps.WindowFunction):
    def process(self, room: int, results: Sequence[float], ctx: ps.WindowContext) -> Iterator[Alarm]:
        yield Alarm(room, results[0])


job = ps.Job("rooms")
readings = job.data_stream("readings", schema=Reading)
others = job.data_stream("others", schema=Reading)
limits = job.control_stream("limits", schema=Limit)
by_ddl = job.data_stream("by-ddl", schema="room INT, value DOUBLE")
windows = ps.TumblingWindows("1m", time="processing")
