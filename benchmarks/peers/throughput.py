"""Throughput of a contestant: readings per second of a job that runs for ever, its first command, and its memory."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.contestants import Contestant
from benchmarks.processes import MemoryWatch, Program, TreeUsage
from benchmarks.topics import Topics, consumer, count_records, create_topic, delete_topic, read_commands
from benchmarks.workload import Commands, mismatch
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Input", "measure_throughput"]

_POLL_S: Final = 0.1
_QUIET_S: Final = 25.0
_STEADY: Final = (0.1, 0.9)


@dataclass(frozen=True)
class Input:
    """What is on the topics before a contestant starts, and what it has to answer."""

    readings_topic: str
    settings_topic: str
    partitions: int
    readings: int
    expected: Commands


def measure_throughput(
    contestant: Contestant, broker: KafkaBroker, given: Input, work: Path, *, cores: int, patience_s: float
) -> dict[str, Any]:
    """Run a contestant until its commands are there, or no more of them come, and return its figures.

    A run that has commands but not all of them ends 25 s after the last one, and its figures count the readings all
    the same; `missing` says how many commands are not there.
    """
    work.mkdir(parents=True)
    output = f"{work.parent.name}-{work.name}"
    create_topic(broker, output, given.partitions)
    topics = Topics(broker.bootstrap, given.readings_topic, given.settings_topic, output)
    with (
        Program(contestant.command(topics, work, cores), work / "log") as program,
        MemoryWatch(program.pid) as memory,
    ):
        counts = _watch(program, broker, given, output, patience_s)
        cpu_s = TreeUsage.of(program.pid).cpu_s
    found = read_commands(broker, output)
    differs = mismatch(found.commands, given.expected)
    delete_topic(broker, output)
    shutil.rmtree(work)
    steady_s = _time_at(counts, _STEADY[1]) - _time_at(counts, _STEADY[0])
    return {
        "steady_per_s": round((_STEADY[1] - _STEADY[0]) * given.readings / steady_s) if steady_s else 0,
        "readings_per_s": round(given.readings / max(found.last_s - found.first_s, 0.001)),
        "first_output_s": round(found.first_s - program.started_s, 2),
        "whole_s": round(found.last_s - program.started_s, 2),
        "memory_mb": memory.peak_mb,
        "memory_parts_mb": memory.peak_parts_mb,
        "resident_mb": memory.peak_resident_mb,
        "cpu_s": round(cpu_s, 1),
        "commands": len(found.commands),
        "missing": differs.missing,
        "extra": differs.extra,
        "wrong": differs.wrong,
    }


def _watch(
    program: Program, broker: KafkaBroker, given: Input, output: str, patience_s: float
) -> list[tuple[float, int]]:
    """Return how many commands were on the topic when, in seconds."""
    client = consumer(broker, output)
    begin = changed = time.monotonic()
    counts: list[tuple[float, int]] = []
    try:
        while True:
            count = count_records(client, output, given.partitions)
            now = time.monotonic()
            if not counts or counts[-1][1] != count:
                changed = now
            counts.append((now, count))
            if count >= len(given.expected) or (count and now - changed > _QUIET_S):
                return counts
            if now - begin > patience_s:
                raise RuntimeError(
                    f"Only {count:,} of {len(given.expected):,} commands after {patience_s:.0f} s."
                )
            program.check()
            time.sleep(_POLL_S)
    finally:
        client.close()


def _time_at(counts: list[tuple[float, int]], part: float) -> float:
    """Return when so much of the commands was there, between two looks in proportion."""
    wanted = part * counts[-1][1]
    before = counts[0]
    for at, count in counts:
        if count >= wanted:
            step = count - before[1]
            return before[0] + (at - before[0]) * ((wanted - before[1]) / step if step else 1.0)
        before = (at, count)
    return counts[-1][0]
