"""Control history: the records in control streams when a query starts, which the job reads before data.

A control record takes effect before the data of its micro-batch. At a start the control streams may hold more than one
micro-batch reads; then data waits until all of it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.connectors.custom_log import CustomLog
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.cuts import newest_batch
from penstock.savepoints.snapshot_capture import positions_of
from penstock.sources.file_source import FileLog
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.offset_fields import offsets_by_topic
from penstock.streams.own_streams import STARTS

__all__ = ["ControlHistory", "control_history"]

_End: TypeAlias = int | Mapping[str, Mapping[str, int]]


@dataclass
class ControlHistory:
    """The control records to read before data: `ends` by stream, as positions or as offsets by topic and partition.

    Streams that one micro-batch reads to their end, together with data, are left out.
    """

    checkpoint: Checkpoint
    lineage: Lineage
    ends: Mapping[str, _End]

    def is_behind(self) -> bool:
        """Return whether committed micro-batches have not read all of it yet."""
        if not self.ends:
            return False
        committed = newest_batch(self.checkpoint.spark_folder / "commits")
        positions = positions_of(self.checkpoint, self.lineage, self.lineage.first_batch + committed)
        if all(_reaches(positions.get(stream), end) for stream, end in self.ends.items()):
            self.finish()
        return bool(self.ends)

    def finish(self) -> None:
        """Mark all of it as read, since the query that reads it has ended."""
        self.ends = {}

    @property
    def note(self) -> str | None:
        """A sentence for the user while data waits, else None."""
        if not self.ends:
            return None
        streams = ", ".join(repr(stream) for stream in sorted(self.ends))
        return (
            f"Control streams hold more than one micro-batch reads ({streams}). Data waits until the job has read what "
            "they hold now, so that no record overtakes its setting."
        )


def _reaches(position: Mapping[str, Any] | None, end: _End) -> bool:
    if position is None:
        return False
    if isinstance(end, int):
        return bool(position["position"] >= end)
    topics = offsets_by_topic(position)
    # A topic that no longer exists was deleted, and the stream continues without it.
    return all(
        topics[topic].get(partition, 0) >= offset
        for topic, found in end.items()
        if topic in topics
        for partition, offset in found.items()
    )


def control_history(
    sources: list[BoundSource], checkpoint: Checkpoint, lineage: Lineage, *, in_real_time: bool = False
) -> ControlHistory:
    """Return the history to read first, for a job that is about to start its query.

    In real time the tasks read it first by themselves, so it is empty.

    A control stream with a limit per micro-batch in its binding keeps that pace, and data does not wait for it.
    """
    if in_real_time:
        return ControlHistory(checkpoint, lineage, {})
    planned = newest_batch(checkpoint.spark_folder / "offsets")
    positions = positions_of(checkpoint, lineage, lineage.first_batch + planned)
    ends: dict[str, _End] = {}
    for source in sources:
        if source.node.is_control and source.node.name != STARTS:
            end = _end_beyond_one_batch(source, positions.get(source.node.name))
            if end is not None:
                ends[source.node.name] = end
    return ControlHistory(checkpoint, lineage, ends)


def _end_beyond_one_batch(source: BoundSource, position: Mapping[str, Any] | None) -> _End | None:
    log = source.log
    is_paced = isinstance(log, FileLog | KafkaLog) and log.is_paced
    if is_paced:
        return None
    start = log.beginning() if position is None else log.decode(position)
    end = log.latest(start, limited=False)
    if log.latest(start, limited=True) == end:
        return None
    return offsets_by_topic(log.encode(end)) if isinstance(log, KafkaLog | CustomLog) else int(end)
