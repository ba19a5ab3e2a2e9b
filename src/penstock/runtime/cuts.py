"""Cuts: where each stream ended in each micro-batch, read from Spark's own offset log."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.durable import write_atomically
from penstock.sources.offset_fields import PARTITIONS, offsets_by_topic
from penstock.streams.own_streams import STARTS

__all__ = [
    "INTERVALS",
    "Cut",
    "batch_numbers",
    "newest_batch",
    "newest_cut",
    "oldest_ends",
    "read_cut",
    "read_offsets",
    "runs_in_real_time",
    "write_stream_order",
]

INTERVALS = "intervals"
"""The folder with the positions after each interval, where a job runs in real time. Spark logs none then."""

_ORDER_FILE = "streams.json"


@dataclass(frozen=True)
class Cut:
    """The end of each stream in one micro-batch.

    For folders and journals the end is a position (files or bytes read so far), for Kafka the next offset by
    topic and number of the partition, and for custom logs by the name of the partition.
    """

    batch_id: int
    ends: dict[str, int | dict[tuple[str, int | str], int]]


def write_stream_order(checkpoint: Path, streams: Sequence[str], first_batch: int = 0) -> None:
    """Write the order of the streams in Spark's offset log, and the number of the micro-batch that Spark calls 0."""
    # Atomically, since other processes may read it at any moment.
    order = {"streams": list(streams), "first_batch": first_batch}
    write_atomically(checkpoint / _ORDER_FILE, json.dumps(order).encode())


def batch_numbers(log: Path) -> list[int]:
    """Return the sorted micro-batch numbers in one of Spark's logs (offsets, commits), empty without the folder."""
    try:
        names = os.listdir(log)  # noqa: PTH208  # only names are needed
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def newest_batch(log: Path) -> int:
    """Return the newest micro-batch number in one of Spark's logs, -1 without one."""
    return max(batch_numbers(log), default=-1)


def read_offsets(path: Path, streams: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the end of each stream in a file of Spark's offset log. Streams not read yet are left out."""
    if runs_in_real_time(path.parent.parent):
        positions = _interval_positions(path.parent.parent / INTERVALS, int(path.name))
        return {stream: positions[stream] for stream in streams if stream in positions and stream != STARTS}
    # The file holds a version line, a line of metadata, then one line for each source.
    lines = path.read_text().splitlines()[2:]
    found = zip(streams, lines, strict=True)
    return {stream: json.loads(line) for stream, line in found if line != "-" and stream != STARTS}


def runs_in_real_time(spark_folder: Path) -> bool:
    """Return whether Spark's part of a checkpoint is of a job in real time."""
    return (spark_folder / INTERVALS).is_dir()


def _interval_positions(folder: Path, number: int) -> dict[str, dict[str, Any]]:
    """Return the positions after an interval. Those of a planned one that did not end are where it starts."""
    for one in (number, number - 1):
        path = folder / str(one)
        if path.exists():
            positions: dict[str, dict[str, Any]] = json.loads(path.read_bytes())["positions"]
            return positions
    return {}


def read_cut(checkpoint: Path, batch_id: int) -> Cut:
    """Return the cut of one micro-batch."""
    order = _order(checkpoint)
    offsets = read_offsets(checkpoint / "offsets" / str(batch_id - order["first_batch"]), order["streams"])
    return Cut(batch_id, {stream: _end(offset) for stream, offset in offsets.items()})


def newest_cut(checkpoint: Path) -> Cut | None:
    """Return the cut of the newest committed micro-batch, or None before the first."""
    done = batch_numbers(checkpoint / "commits")
    return read_cut(checkpoint, _order(checkpoint)["first_batch"] + done[-1]) if done else None


def oldest_ends(log: Path, streams: Sequence[str]) -> dict[str, int | dict[tuple[str, int | str], int]]:
    """Return the end of each stream in the oldest micro-batch of an offset log, which has the given stream order.

    Empty if the log is empty or its oldest file is broken.
    """
    found = batch_numbers(log)
    if not found:
        return {}
    try:
        offsets = read_offsets(log / str(found[0]), streams)
    except (OSError, ValueError):
        return {}
    return {stream: _end(offset) for stream, offset in offsets.items()}


def _order(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / _ORDER_FILE).read_text())
    return found


def _end(offset: dict[str, Any]) -> int | dict[tuple[str, int | str], int]:
    if "position" in offset:
        return int(offset["position"])
    topics = offsets_by_topic(offset)
    # The partitions of a topic are numbers; those of a custom log have any names.
    return {
        (topic, name if topic == PARTITIONS else int(name)): end
        for topic, found in topics.items()
        for name, end in found.items()
    }
