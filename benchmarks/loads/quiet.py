"""Quiet loads: a job without records, one with few of them, and how soon a job answers at all."""

from __future__ import annotations

import statistics
import time
from typing import Final

from benchmarks.loads.setting import Figures, LoadError, Probed, Setting
from benchmarks.probe import percentiles
from benchmarks.topics import load_readings, load_settings, read_commands
from benchmarks.workload import Rooms, expected_commands, mismatch

__all__ = ["idle", "small", "start"]

_REST_S: Final = 8.0
_FEW: Final = 100
_SMALL_KEYS: Final = 5
_SMALL_RATE: Final = 30
_STARTS: Final = 3
_FIRST_RECORDS: Final = 8
_PATIENCE_S: Final = 180.0


def idle(setting: Setting) -> Figures:
    """Let a job with settings but without data stand; then it still answers."""
    with setting.probed(_FEW) as probed:
        time.sleep(_REST_S)
        cpu_s, begin = probed.job.cpu_s, time.monotonic()
        time.sleep(setting.seconds)
        used = (probed.job.cpu_s - cpu_s) / (time.monotonic() - begin)
        memory = _memory(probed)
        probed.send(1.0, _FEW)
        probed.check_answers()
        return {"cpu_percent": round(100 * used, 1), **memory, "over_s": setting.seconds}


def small(setting: Setting) -> Figures:
    """Send 30 readings a second of 5 sensors."""
    with setting.probed(_SMALL_KEYS) as probed:
        probed.send(_REST_S, _SMALL_RATE)
        begin, cpu_s, start = probed.probe.sent, probed.job.cpu_s, time.monotonic()
        probed.send(setting.seconds, _SMALL_RATE)
        used = (probed.job.cpu_s - cpu_s) / (time.monotonic() - start)
        memory = _memory(probed)
        probed.check_answers()
        latency = percentiles(probed.probe.trips(begin, probed.probe.sent).latency_ms)
        return {"cpu_percent": round(100 * used, 1), **memory, **latency}


def _memory(probed: Probed) -> Figures:
    """Return the memory of the job now, and the sum of the resident memory of its processes."""
    return {"memory_mb": probed.job.memory_mb, "resident_mb": probed.job.resident_mb}


def start(setting: Setting) -> Figures:
    """Measure the time from `penstock run` to the first output, when 8 records wait."""
    rooms = Rooms(_FIRST_RECORDS, 0.45)
    readings = rooms.alternating(1)
    expected = expected_commands(rooms, [readings])
    taken = []
    for number in range(_STARTS if setting.scale == 1 else 1):
        one = setting.named(f"{setting.name}-{number}")
        topics = one.create_topics()
        load_settings(one.broker, topics.settings, rooms)
        load_readings(one.broker, topics.readings, one.partitions, readings)
        with one.thermostat() as running:
            deadline = time.monotonic() + _PATIENCE_S
            while one.outputs() < len(expected):
                running.check()
                if time.monotonic() > deadline:
                    raise LoadError(f"There are only {one.outputs()} of {len(expected)} commands.")
                time.sleep(0.2)
            found = read_commands(one.broker, topics.heaters)
            taken.append(found.first_s - running.program.started_s)
        if differs := mismatch(found.commands, expected):
            raise LoadError(f"The commands differ from the fold: {differs}")
    return {"first_output_s": round(statistics.median(taken), 2), "starts": len(taken)}
