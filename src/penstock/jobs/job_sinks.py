"""Job sinks: the sinks of a job from their bindings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from penstock.bindings.types import Binding, ConsoleBinding, DiscardBinding, FilesBinding, KafkaBinding
from penstock.errors import BindingError
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.records.wire_formats import format_of
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE, DEAD_LETTERS
from penstock.runtime.plan import JobPlan
from penstock.sinks.base import Sink
from penstock.sinks.console import ConsoleSink
from penstock.sinks.discard import DiscardSink
from penstock.sinks.file_sink import FilesSink
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_parts import check_parts
from penstock.streams.graph import ProcessNode, SinkNode
from penstock.streams.job_description import JobDescription

__all__ = ["check_origin", "open_sink", "open_sinks", "refuse_origin"]

# A task in real time does not flush what it has sent until its interval ends.
_AT_ONCE: Final = {"linger.ms": "0", "socket.nagle.disable": "true"}


def open_sinks(
    job: JobDescription, plan: JobPlan, bindings: Mapping[str, Binding], *, in_real_time: bool
) -> dict[str, tuple[Sink, RecordType, pa.Schema]]:
    """Return each sink, including the one for dead letters, with the type and schema that it writes."""
    sinks: dict[str, tuple[Sink, RecordType, pa.Schema]] = {}
    for sink in job.graph.sinks():
        binding = bindings[sink.name]
        if in_real_time and isinstance(binding, KafkaBinding):
            check_origin(job, sink, binding)
            binding = dataclasses.replace(binding, client={**_AT_ONCE, **binding.client})
        made = open_sink(binding, sink.record_type, sink.protobuf)
        sinks[sink.name] = (made, sink.record_type, plan.sink_schema(sink))
    sinks[DEAD_LETTERS] = (
        open_sink(bindings[DEAD_LETTERS], DEAD_LETTER_TYPE, None),
        DEAD_LETTER_TYPE,
        DEAD_LETTER_TYPE.schema,
    )
    return sinks


def refuse_origin(binding: Binding) -> None:
    """Raise BindingError when messages are to have an origin that are not records of a stream."""
    if isinstance(binding, KafkaBinding) and binding.origin:
        raise BindingError(
            f"origin=true has no meaning for {binding.stream}, which have the position of their record as fields. "
            "Leave it out."
        )


def check_origin(job: JobDescription, sink: SinkNode, binding: KafkaBinding) -> None:
    """Raise BindingError when the origins of records would differ after a crash in real time."""
    steps = [node for node in job.graph.origins(sink.upstream) if isinstance(node, ProcessNode)]
    if binding.origin and steps:
        raise BindingError(
            f"Sink {sink.name!r}: origin=true numbers the output of step {steps[0].step!r} within a micro-batch, and "
            "real time has none: what is read again after a crash comes in other rounds. Use delivery=exactly-once, or "
            "run the job in micro-batches."
        )


def open_sink(binding: Binding, record_type: RecordType, protobuf: ProtobufSource | None) -> Sink:
    """Return the sink of a binding for records of a type."""
    if isinstance(binding, FilesBinding):
        return FilesSink(binding)
    if isinstance(binding, KafkaBinding):
        check_parts(binding, record_type)
        return KafkaSink(binding, format_of(binding.format, record_type, protobuf=protobuf))
    if isinstance(binding, DiscardBinding):
        return DiscardSink()
    assert isinstance(binding, ConsoleBinding)
    return ConsoleSink(binding)
