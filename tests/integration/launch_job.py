"""A job that tests run from Python: alarms for rooms that are too warm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

__all__ = ["Alarm", "Limit", "Reading", "job"]


@dataclass
class Reading:
    room: int
    temperature: float


@dataclass
class Limit:
    room: int
    highest: float


@dataclass
class Alarm:
    room: int
    temperature: float


class Watch(ps.ConnectedProcessFunction):
    """Emits each reading above the limit of its room; raises for a reading of minus 300 degrees."""

    limit = ps.ValueState(float)

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        self.limit.set(limit.highest)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alarm]:
        if reading.temperature == -300:
            raise ValueError("colder than there is")
        limit = self.limit.get()
        if limit is not None and reading.temperature > limit:
            yield Alarm(reading.room, reading.temperature)


job = ps.Job("watch")
readings = job.data_stream("readings", schema=Reading).key_by("room")
limits = job.control_stream("limits", schema=Limit).key_by("room")
readings.connect(limits).process("watch", Watch()).sink_to("alarms")
