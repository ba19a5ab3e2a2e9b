"""Job sources: the sources of a job from their bindings, and the receivers that fill journals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.base.durable import make_folder
from penstock.bindings.amazon_types import KinesisBinding
from penstock.bindings.secrets import redact
from penstock.bindings.types import (
    LINE_FORMATS,
    RECORDS_PER_BATCH,
    Binding,
    DeltaBinding,
    FilesBinding,
    HttpListenBinding,
    IcebergBinding,
    KafkaBinding,
    MqttBinding,
    ObjectsBinding,
    PostgresBinding,
    PythonBinding,
    QueueBinding,
    RabbitStreamBinding,
    RateBinding,
    SocketBinding,
    SparkBinding,
)
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.connectors.custom_log import open_custom_log
from penstock.connectors.custom_receiver import CustomReceiver
from penstock.control.commands import CommandFormat
from penstock.databases.row_json import COMMAND_ROWS, RowShape
from penstock.databases.table_receiver import TableReceiver, check_table
from penstock.errors import BindingError
from penstock.jobs.cluster_state import kept_files
from penstock.jobs.settings import RunSettings
from penstock.lakes.lake_log import LakeLog
from penstock.records.event_headers import EventHeaders, event_headers_of
from penstock.records.types import RecordType
from penstock.records.wire_formats import Format, format_of
from penstock.registries.message_formats import message_format
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.command_reader import COMMAND_NODE, CommandReader
from penstock.runtime.cuts import oldest_ends
from penstock.runtime.message_fields import MessageFields
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.start_signal import START_NODE, StartReader
from penstock.sinks.object_sink import open_folder
from penstock.sources.base import ReplayableLog
from penstock.sources.carried_files import CarriedFiles
from penstock.sources.fetched import FetchedFiles
from penstock.sources.file_source import FileLog, Keeping
from penstock.sources.gathered_messages import WantedParts
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.object_log import ObjectLog
from penstock.sources.rate import RateLog, check_schema
from penstock.sources.receiver import Receiver
from penstock.sources.socket import SocketReceiver
from penstock.sources.starts import StartLog
from penstock.sources.topic_identity import TopicIdentity
from penstock.streams.graph import COMMANDS, Port, SourceNode
from penstock.streams.job_description import JobDescription
from penstock.streams.own_streams import STARTS

__all__ = ["SourcePlace", "has_raw", "open_sources"]

# What the source gives once is kept in a journal.
_MessageBinding: TypeAlias = (
    QueueBinding
    | RabbitStreamBinding
    | MqttBinding
    | HttpListenBinding
    | PostgresBinding
    | PythonBinding
    | KinesisBinding
)
_Received: TypeAlias = SocketBinding | _MessageBinding

# The last segment is read each time it is saved to a store, and travels with plans.
_STORED_SEGMENT_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class SourcePlace:
    """What the sources of a job share: plan, checkpoint and lineage, settings, topics, and fence.

    `apart` says that tasks may not reach the folder of the checkpoint.
    """

    plan: JobPlan
    checkpoint: Checkpoint
    lineage: Lineage
    settings: RunSettings
    topics: TopicIdentity
    fence: Callable[[], None]
    apart: bool = False

    def keeping(self, stream: str, directory: str) -> Keeping:
        """Return the retention of the files that a file stream has read."""
        lineage = self.checkpoint.stored_lineage()
        streams = () if lineage is None else lineage.streams
        oldest = (
            oldest_ends(self.checkpoint.spark_folder / "offsets", streams).get(stream, 0) if streams else 0
        )
        own = (self.checkpoint.folder / COMMANDS, self.checkpoint.inputs / stream)
        return Keeping(
            self.settings.retained_batches,
            oldest if isinstance(oldest, int) else 0,
            owned=Path(directory).absolute() in own,
        )


def open_sources(
    job: JobDescription, bindings: Mapping[str, Binding], place: SourcePlace
) -> tuple[list[BoundSource], list[Receiver[Any]]]:
    """Return the sources in the order of the lineage, and the receivers of those that cannot be read again."""
    sources: list[BoundSource] = []
    receivers: list[Receiver[Any]] = []
    commands = bindings.get(COMMANDS)
    nodes = [*job.graph.sources(), *([COMMAND_NODE] if commands is not None else [])]
    for node in nodes:
        source, receiver = _source(node, bindings[node.name], place)
        sources.append(source)
        receivers += [receiver] if receiver is not None else []
    if commands is not None:
        sources[-1] = _command_source(sources[-1], commands, place, place.settings)
    if STARTS in place.checkpoint.known_lineage().streams:
        sources.append(BoundSource(START_NODE, StartLog(), StartReader(place.plan)))
    return sources, receivers


def has_raw(binding: Binding) -> bool:
    """Return whether the source has raw bytes for each record."""
    if isinstance(binding, FilesBinding | ObjectsBinding):
        return binding.format in LINE_FORMATS
    return not isinstance(binding, RateBinding | SparkBinding | DeltaBinding | IcebergBinding)


def _source(
    node: SourceNode, binding: Binding, place: SourcePlace
) -> tuple[BoundSource, Receiver[Any] | None]:
    """Return the source, and a receiver that writes its journal if it cannot be read again."""
    where = place.checkpoint.folder / "sources"
    is_filled = _is_filled(node, binding)
    log: ReplayableLog[Any]
    receiver: Receiver[Any] | None = None
    name: Any = None
    if isinstance(binding, KafkaBinding):
        log = KafkaLog(
            binding,
            binding.client,
            place.topics.known[node.name],
            binding.max_records_per_batch or RECORDS_PER_BATCH,
            _wanted_parts(node, binding, place.plan),
            starts_small=not (node.is_control or place.settings.bounded or binding.is_paced),
        )
        name = binding.format
    elif isinstance(binding, FilesBinding):
        keeping = place.keeping(node.name, binding.directory)
        log_type = CarriedFiles if place.apart and node is COMMAND_NODE else FileLog
        files = log_type(binding, where / f"{node.name}.files", keeping, place.fence)
        files.check()
        log, name = files, _file_format(node, binding)
    elif isinstance(binding, DeltaBinding | IcebergBinding):
        commits = LakeLog(
            binding,
            where / f"{node.name}.files",
            place.keeping(node.name, binding.place),
            place.fence,
            commands=node is COMMAND_NODE,
        )
        commits.check()
        log = commits
    elif isinstance(binding, ObjectsBinding):
        assert binding.reading is not None
        keeping = place.keeping(node.name, binding.place)
        objects = ObjectLog(binding, open_folder, where / f"{node.name}.files", keeping, place.fence)
        objects.check()
        log, name = objects, _file_format(node, binding.reading)
    elif isinstance(binding, SparkBinding):
        # Spark loads it before the stream begins; what it has written is read like any folder.
        loaded = FilesBinding(node.name, binding.uri, "parquet", str(place.checkpoint.inputs / node.name))
        make_folder(Path(loaded.directory))
        log = FileLog(
            loaded, where / f"{node.name}.files", place.keeping(node.name, loaded.directory), place.fence
        )
    elif isinstance(binding, RateBinding):
        check_schema(node.name, node.record_type)
        log = RateLog(binding)
    elif isinstance(binding, PythonBinding) and binding.kind == "log":
        make_folder(where)
        log, name = open_custom_log(binding, where / f"{node.name}.begins"), binding.format
    else:
        assert isinstance(binding, _Received)
        folder = where / f"{node.name}.journal"
        receiver = _receiver(node, binding, folder, place)
        log = JournalLog(folder, carries=place.apart)
        name = (
            _line_format(node.record_type) if isinstance(binding, SocketBinding) else _message_format(binding)
        )
    lines = isinstance(binding, SocketBinding | FilesBinding | ObjectsBinding) and name is not None
    fields = None
    if is_filled:
        fields = MessageFields(node.record_type, node.metadata, place.topics.known[node.name].names)
    kind = node.record_type if fields is None else node.body_type
    reader = StreamReader(place.plan, node, _format(name, binding, node, kind), lines, fields)
    return BoundSource(node, log, reader), receiver


def _wanted_parts(node: SourceNode, binding: KafkaBinding, plan: JobPlan) -> WantedParts:
    events = _event_headers(binding, node.body_type)
    return WantedParts.of(node.metadata, keys=plan.wants_keys(Port(node.id)), events=events)


def _event_headers(binding: KafkaBinding | HttpListenBinding, kind: RecordType) -> EventHeaders | None:
    """Return the attributes of CloudEvents in headers (binary mode); None for other formats."""
    if binding.events is None:
        return None
    prefix = "ce_" if isinstance(binding, KafkaBinding) else "ce-"
    return event_headers_of(binding.events.attributes, kind, prefix)


def _is_filled(node: SourceNode, binding: Binding) -> bool:
    """Return whether messages fill fields of a stream. Raises BindingError when its source cannot have them."""
    if not node.metadata or isinstance(binding, KafkaBinding):
        return bool(node.metadata)
    # Files that were made from records have all of their fields, and so have records from Python.
    is_table = isinstance(binding, SparkBinding | DeltaBinding | IcebergBinding)
    if is_table or (isinstance(binding, FilesBinding | ObjectsBinding) and binding.format != "text"):
        return False
    raise BindingError(
        f"Stream {node.name!r} takes {', '.join(name for name, _ in node.metadata)} from Kafka messages, which "
        f"{redact(binding.uri)!r} does not have. Bind it to kafka://, to a folder (jsonl, csv, parquet) whose "
        "records have these fields, or describe the stream without metadata=."
    )


def _message_format(binding: _MessageBinding) -> str:
    return "json" if isinstance(binding, PostgresBinding) else binding.format


def _receiver(node: SourceNode, binding: _Received, folder: Path, place: SourcePlace) -> Receiver[Any]:
    bounded = place.settings.bounded
    opened = functools.partial(_open_journal, folder, place.checkpoint)
    if isinstance(binding, SocketBinding):
        return SocketReceiver(binding, opened(), bounded=bounded)
    # Each library takes a tenth of a second to load, which other jobs need not wait for.
    if isinstance(binding, HttpListenBinding):
        from penstock.webhooks.http_receiver import HttpReceiver

        events = _event_headers(binding, node.record_type)
        return HttpReceiver(binding, folder, opened(), bounded=bounded, events=events)
    if isinstance(binding, QueueBinding):
        from penstock.rabbitmq.rabbitmq_queue import QueueReceiver, check_queue

        check_queue(binding)
        return QueueReceiver(binding, opened(), bounded=bounded)
    if isinstance(binding, MqttBinding):
        from penstock.mqtt.mqtt_connection import check_topic_filter
        from penstock.mqtt.mqtt_receiver import MqttReceiver, session_of

        check_topic_filter(binding)
        return MqttReceiver(binding, session_of(binding, place.lineage.id), opened(), bounded=bounded)
    if isinstance(binding, KinesisBinding):
        from penstock.kinesis.kinesis_receiver import KinesisReceiver
        from penstock.kinesis.kinesis_stream import check_stream as check_kinesis

        check_kinesis(binding)
        return KinesisReceiver(binding, folder, opened(), bounded=bounded)
    if isinstance(binding, PostgresBinding):
        shape = COMMAND_ROWS if node is COMMAND_NODE else RowShape(node.record_type.schema)
        check_table(binding, shape)
        return TableReceiver(binding, shape, opened(), bounded=bounded)
    if isinstance(binding, PythonBinding):
        return CustomReceiver(binding, opened(), bounded=bounded)
    from penstock.rabbitmq.rabbitmq_stream import StreamReceiver, check_stream

    check_stream(binding)
    return StreamReceiver(binding, opened(), bounded=bounded)


def _open_journal(folder: Path, checkpoint: Checkpoint) -> JournalWriter:
    """Open a journal, which is kept in the store of the checkpoint, too, if there is one."""
    stored = checkpoint.stored
    if stored is None:
        return JournalWriter(folder)
    name = folder.relative_to(checkpoint.folder).as_posix()
    return JournalWriter(folder, _STORED_SEGMENT_BYTES, functools.partial(stored.keep, name))


def _command_source(
    source: BoundSource, binding: Binding, place: SourcePlace, settings: RunSettings
) -> BoundSource:
    """Return the source that reads commands from the input of a bound source. Raises BindingError for its format."""
    form = getattr(binding, "format", "json")
    known: dict[str, CommandFormat] = {"json": "json", "jsonl": "json", "protobuf": "protobuf"}
    is_table = isinstance(binding, SparkBinding) or (
        isinstance(binding, FilesBinding | ObjectsBinding) and form != "jsonl"
    )
    if form not in known or is_table or getattr(binding, "registry", None) is not None:
        raise BindingError(
            f"Commands are JSON or protobuf without a registry, so {COMMANDS} cannot be bound to "
            f"{redact(binding.uri)!r}."
        )
    max_bytes = settings.max_command_bytes
    fetched = FetchedFiles(kept_files(place.checkpoint), max_bytes, settings.allowed)
    reader = CommandReader(
        place.plan,
        known[form],
        max_bytes,
        fetched,
        max_model_bytes=settings.max_model_mb << 20,
        # Nobody could send a command to a bounded run once more.
        models_beside=not settings.bounded,
    )
    return BoundSource(COMMAND_NODE, source.log, reader)


def _file_format(node: SourceNode, binding: FilesBinding) -> str | None:
    """Return the format of a line in a file; None for files that are tables."""
    if binding.format != "text":
        return "json" if binding.format == "jsonl" else None
    if not _is_one_text(node.record_type):
        raise BindingError(
            f"Stream {node.name!r} is bound to {binding.uri!r}, but its records are not lines of text: these need a "
            "schema with a single field of type str or bytes. Bind it to jsonl:DIR, or use such a schema and parse "
            "the lines in the job (map)."
        )
    return "bytes"


def _line_format(record_type: RecordType) -> str:
    """Return the format of a line: JSON, or the line itself for records of a single text or bytes field."""
    return "bytes" if _is_one_text(record_type) else "json"


def _is_one_text(record_type: RecordType) -> bool:
    fields = record_type.fields
    return len(fields) == 1 and fields[0].arrow_type in (pa.string(), pa.binary())


def _format(name: Any, binding: Binding, node: SourceNode, kind: RecordType) -> Format | None:
    if name is None or node is COMMAND_NODE:
        return None
    if isinstance(
        binding, KafkaBinding | MqttBinding | QueueBinding | RabbitStreamBinding | HttpListenBinding
    ):
        return message_format(binding, kind, node.protobuf, allow_nan=node.allow_nan)
    return format_of(name, kind, protobuf=node.protobuf, allow_nan=node.allow_nan)
