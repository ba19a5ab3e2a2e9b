"""Chains with one mistake a line, and behind it a part of what mypy says of it."""

from __future__ import annotations

from typed_records import (
    Alarm,
    Escalate,
    First,
    Highest,
    Judge,
    Told,
    Vectorised,
    Watch,
    alarm_of,
    by_ddl,
    higher,
    is_high,
    is_urgent,
    job,
    limits,
    name_of,
    number_of,
    readings,
    room_of,
    windows,
)

import penstock as ps

alarms = readings.map(alarm_of)
by_room = readings.key_by(room_of)
connected = by_room.connect(limits.broadcast())
windowed = by_room.window(windows)

# Stateless functions.
alarms.map(alarm_of)  # E: Argument 1 to "map" of "DataStream" has incompatible type
alarms.map(alarm_of, output=Alarm)  # E: Argument 1 to "map"
alarms.filter(is_high)  # E: Argument 1 to "filter"
readings.map(alarm_of).filter(is_high)  # E: Argument 1 to "filter"
readings.where(is_high)  # E: Argument 1 to "where" of "ExpressionMethods" has incompatible type
readings.where("room = 1").filter(is_urgent)  # E: Argument 1 to "filter"
readings.map(lambda reading: reading.humidity)  # E: "Reading" has no attribute "humidity"
readings.flat_map(alarm_of)  # E: Argument 1 to "flat_map"
by_ddl.map(alarm_of).filter(is_high)  # E: Argument 1 to "filter"
readings.union(alarms)  # E: Argument 1 to "union"
readings.union(by_room)  # E: Argument 1 to "union"
job.data_stream("numbers", schema=3)  # E: Argument "schema" to "data_stream"
job.data_stream("keyed", schema="k INT", metadata={"k": 1})  # E: Dict entry 0 has incompatible type

# Keys.
alarms.key_by(room_of)  # E: Argument 1 to "key_by"
alarms.key_by(lambda alarm: alarm.value, key_type=float)  # E: "Alarm" has no attribute "value"
by_room.map(alarm_of)  # E: "KeyedStream[int, Reading]" has no attribute "map"

# Steps.
alarms.process("judge", Judge())  # E: Argument 2 to "process" of "DataStream"
alarms.key_by("room").process("judge", Judge())  # E: Argument 2 to "process" of "KeyedStream"
by_room.process("judge", Judge)  # E: No overload variant of "process" of "KeyedStream"
by_room.process("judge", alarm_of)  # E: No overload variant of "process"
by_room.process("judge", Judge()).filter(is_high)  # E: Argument 1 to "filter"
by_room.process("judge", Judge()).key_by("room").process("again", Judge())  # E: Argument 2 to "process"
by_room.process("columns", Vectorised(), output=Alarm).filter(is_high)  # E: Argument 1 to "filter"
by_room.process("judge", Judge(), output=3)  # E: No overload variant of "process"
by_room.process("escalate", Escalate(), output=Alarm)  # E: Argument 2 to "process"

# Rolling aggregates.
alarms.key_by("room").reduce("highest", higher)  # E: Argument 2 to "reduce" of "KeyedStream"
by_room.reduce("highest", higher).filter(is_urgent)  # E: Argument 1 to "filter"
alarms.key_by("room").aggregate("highest", Highest())  # E: Argument 2 to "aggregate" of "KeyedStream"

# Control streams.
by_room.connect(limits.key_by(name_of))  # E: Argument 1 to "key_by" of "DataStream" has incompatible type
by_room.connect(limits)  # E: Argument 1 to "connect"
readings.connect(limits.key_by(number_of))  # E: Argument 1 to "connect" of "DataStream"
connected.process("judge", Judge())  # E: No overload variant of "process" of "ConnectedStream"
alarms.key_by("room").connect(limits.broadcast()).process("watch", Watch())  # E: Argument 2 to "process"

# Windows.
alarms.key_by("room").window(windows).reduce("highest", higher)  # E: Argument 2 to "reduce"
windowed.reduce("highest", higher).filter(is_urgent)  # E: Argument 1 to "filter"
windowed.reduce("highest", higher, Told())  # E: Argument 3 to "reduce"
alarms.key_by("room").window(windows).aggregate("highest", Highest())  # E: Argument 2 to "aggregate"
windowed.aggregate("highest", Highest(), First())  # E: Cannot infer value of type parameter "AggregateT"
windowed.process("told", Told())  # E: Argument 2 to "process" of "WindowedStream"
limits.key_by(name_of).window(windows).process("first", First())  # E: Argument 2 to "process"
windowed.process("first", First()).filter(is_high)  # E: Argument 1 to "filter"


def takes_alarms(stream: ps.DataStream[Alarm]) -> None: ...


takes_alarms(readings)  # E: Argument 1 to "takes_alarms"
