"""Heavy loads: all readings wait when the job starts, with a key that has a third of them, many keys, or large ones."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.loads.setting import Figures, LoadError, Setting
from benchmarks.peers.contestants import Penstock
from benchmarks.peers.throughput import Input, measure_throughput
from benchmarks.topics import load_readings, load_settings, load_values, read_values
from benchmarks.workload import Readings, Rooms, expected_commands

__all__ = ["check_notes", "large_records", "many_keys", "note", "skewed"]

_READINGS: Final = 4_000_000
_KEYS: Final = 100_000
_MANY_KEYS: Final = 1_000_000
_SHARE: Final = 0.3
_LARGE_BYTES: Final = 10_240
_LARGE: Final = 30_000
_LARGE_KEYS: Final = 100
_PATIENCE_S: Final = 300.0


def skewed(setting: Setting) -> Figures:
    """Give one sensor 30 % of the readings, beside a run in which all have the same share."""
    count = setting.scaled(_READINGS)
    rooms = Rooms(setting.scaled(_KEYS), 0.45)
    even = rooms.readings(count, 0)
    often = np.random.default_rng(3).random(count) < _SHARE
    sensors = np.where(often, np.int32(0), even.sensor_id)
    # The temperature keeps its distance from what the room wants, so as many readings cause a command.
    temperature = even.temperature - rooms.desired[even.sensor_id] + rooms.desired[sensors]
    evenly = _throughput(setting.named(f"{setting.name}-even"), rooms, even)
    found = _throughput(setting, rooms, Readings(sensors, temperature))
    return {**found, "of_even_load": round(found["steady_per_s"] / evenly["steady_per_s"], 2)}


def many_keys(setting: Setting) -> Figures:
    """Hold a million keys, each with a setting and some with a last command."""
    rooms = Rooms(setting.scaled(_MANY_KEYS), 0.45)
    return _throughput(setting, rooms, rooms.readings(setting.scaled(_READINGS), 0))


def _throughput(setting: Setting, rooms: Rooms, readings: Readings) -> Figures:
    """Run the job on these readings until all commands are there, which must be those of the fold."""
    topics = setting.create_topics()
    load_settings(setting.broker, topics.settings, rooms)
    load_readings(setting.broker, topics.readings, setting.partitions, readings)
    expected = expected_commands(rooms, [readings])
    given = Input(topics.readings, topics.settings, setting.partitions, len(readings), expected)
    found = measure_throughput(
        Penstock(interval=setting.interval, memory_mb=setting.memory_mb),
        setting.broker,
        given,
        setting.work / f"{setting.name}-run",
        cores=setting.cores,
        patience_s=_PATIENCE_S,
    )
    wrong = {name: found.pop(name) for name in ("missing", "extra", "wrong")}
    if any(wrong.values()):
        raise LoadError(f"The commands differ from the fold: {wrong}")
    return {**found, "keys": rooms.count}


def large_records(setting: Setting) -> Figures:
    """Move records of 10 KB through a keyed step and out again."""
    count = setting.scaled(_LARGE)
    topics = setting.create_topics()
    keys = [number % _LARGE_KEYS for number in range(count)]
    values = [note(key, number, _LARGE_BYTES) for number, key in enumerate(keys)]
    load_values(setting.broker, topics.readings, setting.partitions, keys, values)
    with setting.own_job("copies") as running:
        begin = _await_outputs(setting, 1, running.check)
        first = setting.outputs()
        end = _await_outputs(setting, count, running.check)
        memory_mb, peak_mb = running.memory_mb, running.memory.peak_mb
    check_notes(read_values(setting.broker, topics.heaters), _LARGE_BYTES, count)
    rate = (count - first) / max(end - begin, 0.001)
    return {
        "records_per_s": round(rate),
        "mb_per_s": round(rate * _LARGE_BYTES / 2**20, 1),
        "memory_mb": memory_mb,
        "peak_mb": peak_mb,
    }


def _await_outputs(setting: Setting, count: int, check: Any) -> float:
    deadline = time.monotonic() + _PATIENCE_S
    while (have := setting.outputs()) < count:
        check()
        if time.monotonic() > deadline:
            raise LoadError(f"Only {have:,} of {count:,} outputs came within {_PATIENCE_S:.0f} s.")
        time.sleep(0.1)
    return time.monotonic()


def note(key: int, number: int, size: int) -> bytes:
    """Return a note in JSON, whose text has so many bytes and depends on its number."""
    return msgspec.json.encode({"key": key, "number": number, "text": _text(number, size)})


def check_notes(values: list[bytes], size: int, count: int | None = None) -> None:
    """Raise LoadError unless these are notes without a gap: for each key counted from 1, in order, and unchanged.

    Args:
        values: in the order of their partitions; notes of the number n have the key n modulo 100.
        size: of the text, in bytes.
        count: how many there must be; None: as many as there are.

    """
    notes = [msgspec.json.decode(value) for value in values]
    seen: dict[int, int] = {}
    for one in notes:
        seen[one["key"]] = seen.get(one["key"], 0) + 1
        expected = one["key"] + _LARGE_KEYS * (seen[one["key"]] - 1)
        if (one["count"], one["number"]) != (seen[one["key"]], expected):
            raise LoadError(f"Key {one['key']} has note {one['number']} where note {expected} must be.")
        if one["text"] != _text(one["number"], size):
            raise LoadError(f"The text of note {one['number']} has changed.")
    if count is not None and len(notes) != count:
        raise LoadError(f"There are {len(notes):,} notes instead of {count:,}.")


def _text(number: int, size: int) -> str:
    return f"{number:010d}".ljust(size, "abcdefghij"[number % 10])
