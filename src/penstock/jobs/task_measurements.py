"""Task measurements: the reports of the tasks of a micro-batch or interval for metrics only, combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.metrics.batch_metrics import Lag
from penstock.metrics.latency import Latency, add_latencies, latency_at
from penstock.metrics.source_times import SourceTimes
from penstock.metrics.task_reports import (
    EMITTED,
    LAG,
    LATENCY,
    SLOT_TIME,
    TIMES_READ,
    SlotTime,
    decode_emitted,
    decode_latency,
    decode_slot_time,
    decode_times_read,
    decode_waited_for,
)
from penstock.streams.graph import COMMANDS, Graph, ProcessNode, SourceNode, inputs

__all__ = ["TaskMeasurements", "streams_before_sinks"]


@dataclass
class TaskMeasurements:
    """The measurements of all tasks.

    In real time `at_once` has the latency of sinks that make records visible at once, and `emitted` the times of the
    records that caused the output of the other sinks. In micro-batches only `read` is filled: the times of the records
    of each stream. `newest_ms` has the newest time by stream and partition, `topic_lags` what waited in topics at the
    end of an interval.
    """

    at_once: dict[str, Latency] = field(default_factory=dict)
    emitted: dict[str, list[SourceTimes]] = field(default_factory=dict)
    read: dict[str, list[SourceTimes]] = field(default_factory=dict)
    newest_ms: dict[str, dict[str, int]] = field(default_factory=dict)
    topic_lags: dict[str, Lag] = field(default_factory=dict)
    slot_times: list[SlotTime] = field(default_factory=list)

    def add(self, report: Any) -> None:
        """Add the report of a task. Reports of other kinds are ignored."""
        kind, name, body = report.kind, report.name, report.body
        if kind == LATENCY:
            self.at_once = add_latencies(self.at_once, {name: decode_latency(bytes(body))})
        elif kind == EMITTED:
            self.emitted.setdefault(name, []).append(decode_emitted(bytes(body)))
        elif kind == TIMES_READ:
            read = decode_times_read(bytes(body))
            self.read.setdefault(name, []).append(read.times)
            known = self.newest_ms.setdefault(name, {})
            for partition, newest_ms in read.newest_ms.items():
                known[partition] = max(newest_ms, known.get(partition, newest_ms))
        elif kind == LAG:
            more = Lag(records=report.total, seconds=decode_waited_for(bytes(body)).seconds)
            self.topic_lags[name] = _together(self.topic_lags.get(name), more)
        elif kind == SLOT_TIME:
            self.slot_times.append(decode_slot_time(bytes(body)))

    def latencies(
        self, records_out: Mapping[str, int], streams_before: Mapping[str, frozenset[str]], now_ms: float
    ) -> dict[str, Latency]:
        """Return the latency of each sink that has output, which was committed at a time.

        Args:
            records_out: the number of records by sink.
            streams_before: the streams whose records may cause the output of a sink.
            now_ms: when sinks have made it visible, in milliseconds since 1970.

        """
        found = dict(self.at_once)
        for sink, parts in self.emitted.items():
            outputs = sum(sum(part.counts) for part in parts)
            found = add_latencies(found, _latency(SourceTimes.merged(parts), sink, outputs, now_ms))
        for sink, outputs in records_out.items():
            read = (part for name in sorted(streams_before.get(sink, ())) for part in self.read.get(name, ()))
            found = add_latencies(found, _latency(SourceTimes.merged(read), sink, outputs, now_ms))
        return found


def _latency(times: SourceTimes | None, sink: str, outputs: int, now_ms: float) -> dict[str, Latency]:
    return {sink: latency_at(times, outputs, now_ms)} if times is not None and outputs else {}


def _together(one: Lag | None, more: Lag) -> Lag:
    if one is None:
        return more
    known = one.seconds is not None and more.seconds is not None
    seconds = max(one.seconds or 0.0, more.seconds or 0.0) if known else None
    return Lag(records=(one.records or 0) + (more.records or 0), seconds=seconds)


def streams_before_sinks(graph: Graph) -> dict[str, frozenset[str]]:
    """Return, by sink, the streams whose records may cause its output."""
    return {sink.name: frozenset(_streams_before(graph, sink.id)) for sink in graph.sinks()}


def _streams_before(graph: Graph, node_id: str) -> set[str]:
    found: set[str] = set()
    seen, waiting = {node_id}, [node_id]
    while waiting:
        node = graph.nodes[waiting.pop()]
        if isinstance(node, SourceNode):
            found.add(node.name)
        elif isinstance(node, ProcessNode):
            found.add(COMMANDS)
        new = {port.node for port in inputs(node)} - seen
        seen |= new
        waiting += new
    return found
