"""Phases: how long each part of a micro-batch or of an interval takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.metrics.task_reports import SlotTime
from penstock.spark.progress import BatchProgress

__all__ = ["INTERVAL_PHASES", "PHASES", "IntervalEnd", "interval_phases", "phases_of"]

PHASES: Final = ("offsets", "planning", "log", "processing", "sinks")
"""The parts of a micro-batch: find new input, plan, write Spark's logs, run the tasks, commit the sinks."""

INTERVAL_PHASES: Final = ("reading", "rounds", "sinks", "ending", "commit", "waiting")
"""The parts of an interval in real time.

Readers decode records; slots run their steps in rounds and write to sinks; then the interval ends, and is committed.
"""


class IntervalEnd(NamedTuple):
    """When the records of an interval ended, and when its results were on disk, in seconds since 1970."""

    cut_s: float
    durable_s: float


def phases_of(progress: BatchProgress, sinks_s: float, rest_s: float) -> dict[str, float]:
    """Return the duration of each part of a micro-batch in seconds."""
    spark = {name: duration_ms / 1000 for name, duration_ms in progress.duration_ms.items()}
    found = {
        "offsets": spark.get("latestOffset", 0.0),
        "planning": spark.get("getBatch", 0.0) + spark.get("queryPlanning", 0.0),
        "log": spark.get("walCommit", 0.0) + spark.get("commitOffsets", 0.0),
        "processing": max(0.0, spark.get("addBatch", 0.0) - sinks_s - rest_s),
        "sinks": sinks_s,
    }
    return {name: round(found[name], 6) for name in PHASES}


def interval_phases(
    duration_s: float, ended_s: float, slots: Sequence[SlotTime], end: IntervalEnd | None
) -> dict[str, float]:
    """Return the duration of each part of an interval in seconds, as its busiest slot had it.

    `ended_s` is when Spark had committed it, in seconds since 1970. The next interval begins while this one ends and is
    committed, so the phases are not strictly one after the other.
    """
    slot = max(slots, key=lambda one: one.busy_s, default=SlotTime())
    found = {
        "reading": slot.reading_s,
        "rounds": slot.rounds_s,
        "sinks": slot.sinks_s,
        "ending": 0.0 if end is None else max(0.0, end.durable_s - end.cut_s),
        "commit": 0.0 if end is None else max(0.0, ended_s - end.durable_s),
    }
    found["waiting"] = max(0.0, duration_s - sum(found.values()))
    return {name: round(found[name], 6) for name in INTERVAL_PHASES}
