"""Chains in which all types meet. `assert_type` says what a checker must know of them."""

from __future__ import annotations

from typing import Any, assert_type

from typed_records import (
    Alarm,
    Escalate,
    First,
    Highest,
    Judge,
    Limit,
    Reading,
    Silent,
    Told,
    Vectorised,
    Watch,
    alarm_of,
    by_ddl,
    doubled,
    higher,
    is_high,
    is_urgent,
    job,
    limits,
    number_of,
    others,
    readings,
    room_of,
    twice,
    windows,
)

import penstock as ps

assert_type(readings, ps.DataStream[Reading])
assert_type(limits, ps.DataStream[Limit])
assert_type(limits.broadcast(), ps.BroadcastStream[Limit])
assert_type(by_ddl, ps.DataStream[Any])

# Stateless functions.
assert_type(readings.map(alarm_of), ps.DataStream[Alarm])
assert_type(readings.map(lambda reading: reading, output=Reading), ps.DataStream[Reading])
assert_type(readings.map(lambda reading: reading, output="room INT"), ps.DataStream[Any])
assert_type(readings.filter(is_high).flat_map(twice), ps.DataStream[Alarm])
assert_type(readings.flat_map(lambda reading: [reading], output=Limit), ps.DataStream[Limit])
assert_type(readings.union(others, readings.map(doubled)), ps.DataStream[Reading])
assert_type(by_ddl.map(alarm_of).filter(is_urgent), ps.DataStream[Alarm])
assert_type(readings.with_event_time("room"), ps.DataStream[Reading])
assert_type(readings.where(ps.col("value") > 3).where("room = 1"), ps.DataStream[Reading])
assert_type(readings.select("room", ps.col("value").alias("more")), ps.DataStream[Any])
assert_type(readings.key_by(room_of).where("room = 1"), ps.KeyedStream[int, Reading])
assert_type(readings.key_by("room").select("room"), ps.KeyedStream[Any, Any])
by_ddl.filter(lambda record: record.value > 3).union(readings)

# Keys: those of a function are known, those of a field are not, and fit any.
by_room = readings.key_by(room_of)
assert_type(by_room, ps.KeyedStream[int, Reading])
assert_type(readings.key_by(lambda reading: reading.room, key_type=int), ps.KeyedStream[int, Reading])
assert_type(readings.key_by("room"), ps.KeyedStream[Any, Reading])
assert_type(readings.key_by("room", "value"), ps.KeyedStream[Any, Reading])
assert_type(limits.key_by(number_of), ps.KeyedStream[int, Limit])

# Steps.
judged = by_room.process("judge", Judge())
assert_type(judged, ps.ProcessedStream[Alarm])
assert_type(judged.side_output("limits"), ps.DataStream[Any])
assert_type(judged.stamp_control_version(), ps.ProcessedStream[Any])
assert_type(judged.key_by("room").process("escalate", Escalate()), ps.ProcessedStream[Alarm])
assert_type(readings.process("judge-all", Judge()), ps.ProcessedStream[Alarm])
assert_type(by_room.process("columns", Vectorised()), ps.ProcessedStream[Any])
assert_type(by_room.process("columns-as", Vectorised(), output=Alarm), ps.ProcessedStream[Alarm])
assert_type(by_ddl.key_by("room").process("judge-any", Judge()), ps.ProcessedStream[Alarm])
by_room.process("silent", Silent()).side_output("alarms").sink_to("alarms")

# Rolling aggregates.
assert_type(by_room.reduce("highest-so-far", higher), ps.ProcessedStream[Reading])
assert_type(by_room.aggregate("aggregate-so-far", Highest()), ps.ProcessedStream[Any])
assert_type(by_room.count("count-so-far"), ps.ProcessedStream[Any])

# Control streams.
connected = by_room.connect(limits.key_by(number_of), limits.key_by("room"), limits.broadcast())
assert_type(connected, ps.ConnectedStream[int, Reading])
assert_type(connected.process("watch", Watch()), ps.ProcessedStream[Alarm])
assert_type(readings.connect(limits.broadcast()), ps.ConnectedStream[None, Reading])

# Windows.
windowed = by_room.window(windows)
assert_type(windowed.trigger(ps.CountTrigger(3)), ps.WindowedStream[int, Reading])
assert_type(windowed.reduce("highest", higher), ps.ProcessedStream[Reading])
assert_type(windowed.reduce("first-of-one", higher, First()), ps.ProcessedStream[Alarm])
assert_type(windowed.aggregate("aggregate", Highest()), ps.ProcessedStream[Any])
assert_type(windowed.aggregate("told", Highest(), Told()), ps.ProcessedStream[Alarm])
assert_type(windowed.process("first", First()), ps.ProcessedStream[Alarm])
assert_type(windowed.process("first-as", First(), output=Alarm), ps.ProcessedStream[Alarm])
assert_type(windowed.count("count"), ps.ProcessedStream[Any])
assert_type(readings.window_all(windows), ps.WindowedStream[int, Reading])


def without_types(stream: ps.DataStream, keyed: ps.KeyedStream) -> ps.ProcessedStream:
    """A stream may stand without its types, and is then one of anything."""
    stream.filter(is_high).filter(is_urgent)
    return keyed.process("anything", Judge())


without_types(job.data_stream("more", schema=Reading), by_room)
job.data_stream("sent", schema=Reading, metadata={"room": ps.kafka_key()})
