"""Job sinks: the sinks of a job from their bindings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.bindings.amazon_types import DynamoBinding, KinesisBinding
from penstock.bindings.types import (
    Binding,
    ConsoleBinding,
    DeltaBinding,
    DiscardBinding,
    ExchangeBinding,
    FilesBinding,
    IcebergBinding,
    KafkaBinding,
    MqttBinding,
    ObjectsBinding,
    PostgresBinding,
    PythonBinding,
    RedisBinding,
    SparkBinding,
    WebhookBinding,
)
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.connectors.custom_sink import CustomSink
from penstock.databases.postgres_sink import PostgresSink
from penstock.errors import BindingError
from penstock.joins.join_step import JoinStep
from penstock.lakes.delta_sink import DeltaSink
from penstock.lakes.iceberg_sink import IcebergSink
from penstock.lakes.upsert_rows import Deletions, upsert_rows
from penstock.operators.window_step import WindowStep
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.records.wire_formats import format_of
from penstock.registries.message_formats import message_format
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE, DEAD_LETTERS
from penstock.runtime.plan import JobPlan, has_timers
from penstock.sinks.base import Sink
from penstock.sinks.console import ConsoleSink
from penstock.sinks.discard import DiscardSink
from penstock.sinks.file_sink import FilesSink
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sinks.message_parts import check_parts
from penstock.sinks.object_sink import ObjectSink
from penstock.stores.cassandra_sink import CassandraSink
from penstock.stores.redis_sink import RedisSink
from penstock.streams.graph import ProcessNode, SinkNode
from penstock.streams.job_description import JobDescription
from penstock.tables.changes import CHANGE, Change, row_type
from penstock.tables.table_step import TableStep
from penstock.tables.upserts import UpsertEncoder

__all__ = ["OriginBinding", "check_origin", "open_sink", "open_sinks", "refuse_origin", "tells_origin"]

# The bindings of sinks whose messages can tell their origin.
OriginBinding: TypeAlias = (
    KafkaBinding | KinesisBinding | MqttBinding | ExchangeBinding | WebhookBinding | PythonBinding
)
_WITH_OPEN_ORIGIN: Final = MqttBinding | ExchangeBinding | WebhookBinding
# The bindings of sinks that keep one value for each key.
StoreBinding: TypeAlias = RedisBinding | DynamoBinding | CassandraBinding | OpenSearchBinding
# A task in real time does not flush what it has sent until its interval ends.
_AT_ONCE: Final = {"linger.ms": "0", "socket.nagle.disable": "true"}


def open_sinks(
    job: JobDescription, plan: JobPlan, bindings: Mapping[str, Binding], *, in_real_time: bool
) -> dict[str, tuple[Sink, RecordType, pa.Schema]]:
    """Return each sink, including the one for dead letters, with the type and schema that it writes."""
    sinks: dict[str, tuple[Sink, RecordType, pa.Schema]] = {}
    for sink in job.graph.sinks():
        binding = bindings[sink.name]
        if in_real_time and isinstance(binding, KafkaBinding | KinesisBinding | PythonBinding):
            check_origin(job, sink, binding)
        if in_real_time and isinstance(binding, KafkaBinding):
            binding = dataclasses.replace(binding, client={**_AT_ONCE, **binding.client})
        if isinstance(binding, _WITH_OPEN_ORIGIN):
            binding = dataclasses.replace(
                binding, origin=tells_origin(job, sink, binding, in_real_time=in_real_time)
            )
        made = open_sink(binding, sink.record_type, sink.protobuf, upsert_key=sink.upsert_key)
        sinks[sink.name] = (made, sink.record_type, plan.sink_schema(sink))
    sinks[DEAD_LETTERS] = (
        open_sink(bindings[DEAD_LETTERS], DEAD_LETTER_TYPE, None),
        DEAD_LETTER_TYPE,
        DEAD_LETTER_TYPE.schema,
    )
    return sinks


def refuse_origin(binding: Binding) -> None:
    """Raise BindingError when messages are to have an origin that are not records of a stream."""
    if isinstance(binding, OriginBinding) and binding.origin:
        raise BindingError(
            f"origin=true has no meaning for {binding.stream}, which have the position of their record as fields. "
            "Leave it out."
        )


def tells_origin(
    job: JobDescription,
    sink: SinkNode,
    binding: OriginBinding,
    *,
    in_real_time: bool,
) -> bool:
    """Return whether the output of a sink has an origin.

    If its binding leaves that open, it has one when a record can be recognised after a crash.
    """
    if binding.origin is not None:
        if in_real_time:
            check_origin(job, sink, binding)
        return binding.origin
    return not in_real_time or _why_no_origin(job, sink) is None


def check_origin(
    job: JobDescription,
    sink: SinkNode,
    binding: OriginBinding,
) -> None:
    """Raise BindingError when the output of a step cannot be recognised after a crash in real time."""
    reason = _why_no_origin(job, sink) if binding.origin else None
    if reason is None:
        return
    if isinstance(binding, PythonBinding):
        asks, instead = f"{binding.place}, with its ids,", "Let the class state another guarantee"
    elif isinstance(binding, KafkaBinding):
        asks, instead = "origin=true", "Use delivery=exactly-once without origin"
    else:
        asks, instead = "origin=true", "Leave origin out"
    raise BindingError(
        f"Sink {sink.name!r}: in real time {asks} names an output for the record that caused it, but "
        f"{reason}. {instead}, or run the job in micro-batches."
    )


def _why_no_origin(job: JobDescription, sink: SinkNode) -> str | None:
    """Return why some output of a sink cannot be recognised after a crash in real time; None if all of it can."""
    nodes = [node for node in job.graph.origins(sink.upstream) if isinstance(node, ProcessNode)]
    return next(filter(None, (_why_unknown(job, node) for node in nodes)), None)


def _why_unknown(job: JobDescription, node: ProcessNode) -> str | None:
    """Return why some records of a step are not caused by a record of a stream; None if all are."""
    if isinstance(node.function, WindowStep):
        return f"the windows of step {node.step!r} emit what many records have caused"
    if isinstance(node.function, TableStep):
        return f"a row of the table of step {node.step!r} is what many records have caused"
    if isinstance(node.function, JoinStep):
        return f"the join {node.step!r} emits what records of two streams have caused"
    if has_timers(node):
        return f"step {node.step!r} has timers, which emit when their time has come"
    before = [one for edge in node.edges for one in job.graph.origins(edge.port)]
    steps = [one.step for one in before if isinstance(one, ProcessNode)]
    if steps:
        return f"step {node.step!r} is behind step {steps[0]!r}, whose records have no place in a stream"
    return None


def open_sink(
    binding: Binding,
    record_type: RecordType,
    protobuf: ProtobufSource | None,
    *,
    upsert_key: Sequence[str] | None = None,
) -> Sink:
    """Return the sink of a binding for records of a type, which are upserts if there is an `upsert_key`."""
    if isinstance(binding, FilesBinding):
        return FilesSink(binding)
    if isinstance(binding, ObjectsBinding):
        return ObjectSink(binding)
    if isinstance(binding, KafkaBinding):
        check_parts(binding, record_type)
        if upsert_key is not None:
            if binding.key_field is not None:
                raise BindingError(
                    f"Sink {binding.stream!r} takes upserts, whose messages have the key of their row; remove key="
                    f"{binding.key_field} from its URI."
                )
            rows = row_type(record_type)
            return KafkaSink(binding, UpsertEncoder(message_format(binding, rows, protobuf), rows))
        return KafkaSink(binding, message_format(binding, record_type, protobuf))
    if isinstance(binding, DiscardBinding):
        return DiscardSink()
    if isinstance(binding, PostgresBinding):
        return PostgresSink(binding, record_type, upsert_key)
    if isinstance(binding, DeltaBinding | IcebergBinding):
        upserts = upsert_rows(binding, record_type, upsert_key, Deletions(CHANGE, Change.DELETE.value))
        if isinstance(binding, DeltaBinding):
            return DeltaSink(binding, record_type, upserts)
        return IcebergSink(binding, record_type, upserts)
    if isinstance(binding, PythonBinding | SparkBinding):
        return _open_other(binding, record_type, upsert_key)
    if isinstance(binding, StoreBinding):
        return _open_store(binding, record_type, upsert_key)
    if isinstance(binding, _WITH_OPEN_ORIGIN | KinesisBinding) and upsert_key is not None:
        raise BindingError(
            f"Sink {binding.stream!r} takes upserts, but neither requests nor messages of MQTT, RabbitMQ or Kinesis "
            'have a key that a deletion could name. Use sink_to(..., changes="records").'
        )
    if isinstance(binding, MqttBinding):
        # Each client takes a tenth of a second to load.
        from penstock.mqtt.mqtt_sink import MqttSink

        return MqttSink(binding, message_format(binding, record_type, protobuf), record_type)
    if isinstance(binding, ExchangeBinding):
        from penstock.rabbitmq.rabbitmq_sink import RabbitSink

        return RabbitSink(binding, message_format(binding, record_type, protobuf), record_type)
    if isinstance(binding, KinesisBinding):
        from penstock.kinesis.kinesis_sink import KinesisSink

        return KinesisSink(binding, format_of(binding.format, record_type, protobuf=protobuf), record_type)
    if isinstance(binding, WebhookBinding):
        from penstock.webhooks.webhook_sink import WebhookSink

        return WebhookSink(binding, message_format(binding, record_type, None))
    assert isinstance(binding, ConsoleBinding)
    return ConsoleSink(binding)


def _open_store(binding: StoreBinding, record_type: RecordType, upsert_key: Sequence[str] | None) -> Sink:
    """Return the sink of a store that keeps one value for each key."""
    encoder = format_of("json", record_type if upsert_key is None else row_type(record_type))
    if isinstance(binding, RedisBinding):
        return RedisSink(binding, encoder, record_type, upsert_key)
    if isinstance(binding, CassandraBinding):
        return CassandraSink(binding, encoder, record_type, upsert_key)
    if isinstance(binding, OpenSearchBinding):
        from penstock.stores.opensearch_sink import OpenSearchSink

        return OpenSearchSink(binding, encoder, record_type, upsert_key)
    from penstock.stores.dynamo_sink import DynamoSink

    return DynamoSink(binding, encoder, record_type, upsert_key)


def _open_other(
    binding: PythonBinding | SparkBinding, record_type: RecordType, upsert_key: Sequence[str] | None
) -> Sink:
    """Return the sink of a class of the user's, or of a format of Spark."""
    if upsert_key is not None:
        what = "a custom sink" if isinstance(binding, PythonBinding) else "a sink for a format of Spark"
        raise BindingError(
            f"Sink {binding.stream!r} takes upserts, but {what} only adds records. Use "
            'sink_to(..., changes="records"), and merge the changes where you read them.'
        )
    if isinstance(binding, PythonBinding):
        return CustomSink(binding, format_of("json", record_type))
    from penstock.spark.format_sink import FormatSink

    return FormatSink(binding, record_type)
