"""Latency of a contestant: from producing a reading to consuming its command, at a steady rate."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.contestants import Contestant
from benchmarks.probe import Probe, percentiles, probe_rooms
from benchmarks.processes import MemoryWatch, Program, TreeUsage
from benchmarks.topics import Topics, delete_topic, load_settings
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Load", "measure_latency"]

_SETTLED_S: Final = 5.0


@dataclass(frozen=True)
class Load:
    """What a contestant has to do: readings of so many sensors at a rate, of which the warm-up does not count."""

    rate_per_s: int
    warm_up_s: float
    seconds: float
    sensors: int
    partitions: int


def measure_latency(
    contestant: Contestant,
    broker: KafkaBroker,
    work: Path,
    load: Load,
    *,
    cores: int,
) -> dict[str, Any]:
    """Start a contestant, send readings at a rate, and return how long their commands took."""
    work.mkdir(parents=True)
    topics = Topics.named(broker, f"{work.parent.name}-{work.name}")
    topics.create(broker, load.partitions)
    rooms = probe_rooms(load.sensors)
    load_settings(broker, topics.settings, rooms)
    with (
        Program(contestant.command(topics, work, cores), work / "log") as program,
        MemoryWatch(program.pid) as memory,
        Probe(broker, topics.readings, topics.heaters, rooms, load.partitions) as probe,
    ):
        probe.await_job(_SETTLED_S, program.check)
        probe.send(round(load.warm_up_s * load.rate_per_s), load.rate_per_s, program.check)
        begin, used_s, own_s = probe.sent, TreeUsage.of(program.pid).cpu_s, time.process_time()
        probe.send(round(load.seconds * load.rate_per_s), load.rate_per_s, program.check)
        used_s = TreeUsage.of(program.pid).cpu_s - used_s
        own_s = time.process_time() - own_s
        probe.await_answers()
        trips = probe.trips(begin, probe.sent)
        all_trips = probe.trips(0, probe.sent)
    for topic in (topics.readings, topics.settings, topics.heaters):
        delete_topic(broker, topic)
    shutil.rmtree(work)
    return {
        **percentiles(trips.latency_ms),
        "readings": trips.readings,
        "unanswered": all_trips.unanswered,
        "wrong": all_trips.wrong,
        "extra": all_trips.repeated,
        "cores_used": round(used_s / load.seconds, 2),
        "probe_cores_used": round(own_s / load.seconds, 2),
        "memory_mb": memory.peak_mb,
        "memory_parts_mb": memory.peak_parts_mb,
        "resident_mb": memory.peak_resident_mb,
        "sender_late_p99_ms": round(probe.sender_late_ms(), 1),
    }
