"""Compile a job: turn stream names and URIs into sources that read and sinks that write."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.base.durable import make_folder
from penstock.bindings.parse import missing_binding, parse_binding
from penstock.bindings.secrets import redacted
from penstock.bindings.types import (
    LINE_FORMATS,
    RECORDS_PER_BATCH,
    Binding,
    ConsoleBinding,
    DiscardBinding,
    FilesBinding,
    KafkaBinding,
    MqttBinding,
    PostgresBinding,
    QueueBinding,
    RabbitStreamBinding,
    RateBinding,
    SocketBinding,
    WebhookBinding,
)
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.described_graph import DescribedGraph, described_graph
from penstock.checkpoints.topic_partitions import keep_partitions
from penstock.commands.command_catalog import CommandCatalog, command_catalog
from penstock.commands.job_receipts import RECEIPT_TYPE, ReceiptWriter
from penstock.control.commands import CommandFormat
from penstock.control.control_pb2 import Receipt as ReceiptMessage  # type: ignore[attr-defined]
from penstock.errors import BindingError, JobDefinitionError
from penstock.jobs.job_sinks import open_sink, open_sinks, refuse_origin, tells_origin
from penstock.jobs.known_topics import known_topics
from penstock.jobs.settings import RunSettings
from penstock.models.library import MODELS
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.records.wire_formats import Format, format_of
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.command_reader import COMMAND_NODE, CommandReader
from penstock.runtime.cuts import oldest_ends
from penstock.runtime.message_fields import MessageFields
from penstock.runtime.packed_rows import DEAD_LETTERS
from penstock.runtime.plan import JobPlan, wants_starts
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.start_signal import START_NODE, StartReader
from penstock.runtime.writer import Writer
from penstock.sinks.base import Sink
from penstock.sources import kafka_source
from penstock.sources.base import ReplayableLog
from penstock.sources.fetched import FetchedFiles
from penstock.sources.file_source import FileLog, Keeping
from penstock.sources.found_files import no_fence
from penstock.sources.gathered_messages import WantedParts
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.rate import RateLog, check_schema
from penstock.sources.receiver import Receiver
from penstock.sources.socket import SocketReceiver
from penstock.sources.starts import StartLog
from penstock.sources.topic_identity import TopicIdentity
from penstock.spark.lazy_pickle import Sealed
from penstock.streams.graph import (
    COMMANDS,
    RECEIPTS,
    STARTS,
    Port,
    ProcessNode,
    SourceNode,
    TransformNode,
)
from penstock.streams.job_description import JobDescription

__all__ = ["CompiledJob", "compile_job", "wanted_lineage"]

# The bindings of sinks that may reject a record.
_REJECTING: Final = (KafkaBinding, MqttBinding, PostgresBinding, WebhookBinding)
_RECEIPT_MESSAGE: Final = ProtobufSource.of(ReceiptMessage)


@dataclass(frozen=True)
class CompiledJob:
    """A job with its sources and sinks, ready to run.

    `topics` are the Kafka topics that it reads, and `notes` are sentences for the user about them. `max_batch_bytes` is
    the limit of what a micro-batch reads of a topic whose binding has none.
    """

    plan: JobPlan
    lineage: Lineage
    sources: list[BoundSource]
    sinks: dict[str, tuple[Sink, RecordType, pa.Schema]]
    receivers: list[Receiver[Any]]
    receipts: ReceiptWriter
    control: CommandCatalog
    graph: DescribedGraph
    dead_letters_at: str
    topics: TopicIdentity
    notes: list[str]
    max_batch_bytes: int | None = None

    @property
    def writer(self) -> Writer:
        """The writer for all sinks."""
        return Writer(self.plan, self.sinks, self.lineage.output_id)


def compile_job(
    job: JobDescription,
    settings: RunSettings,
    checkpoint: Checkpoint,
    *,
    fence: Callable[[], None] = no_fence,
    gets_seed: bool = False,
) -> CompiledJob:
    """Bind every stream and sink of the job. With `gets_seed` the checkpoint will have a seed when the job starts.

    `fence` raises an error when a later run owns the checkpoint; what sources write there asks it. Raises BindingError
    for the first one that cannot be bound.
    """
    check_travels(job)
    bindings = parse_bindings(job, settings.bindings, checkpoint)
    lineage = checkpoint.lineage(wanted_lineage(job, settings))
    commands = bindings.get(COMMANDS)
    read = [*job.graph.sources(), *([COMMAND_NODE] if commands is not None else [])]
    found = {
        node.name: kafka_source.preflight(binding)
        for node in read
        if isinstance(binding := bindings[node.name], KafkaBinding)
    }
    topics, notes = known_topics((bindings[node.name] for node in read), checkpoint, lineage)
    partitions = {
        name: tuple(topics.known[name].names.all_of(counts))
        for name, counts in found.items()
        if name != COMMANDS
    }
    plan = _plan(job, settings, checkpoint, bindings, partitions, gets_seed=gets_seed)
    sinks = open_sinks(job, plan, bindings, in_real_time=bool(settings.checkpoint_interval_ms))
    sources, receivers = _sources(job, bindings, _Place(plan, checkpoint, lineage, settings, topics, fence))
    for name in (RECEIPTS, DEAD_LETTERS):
        if name in bindings:
            refuse_origin(bindings[name])
    bound_receipts = bindings.get(RECEIPTS)
    receipts = ReceiptWriter(
        checkpoint.folder,
        lineage.output_id,
        None if bound_receipts is None else open_sink(bound_receipts, RECEIPT_TYPE, _RECEIPT_MESSAGE),
        settings.receipts_mb << 20,
    )
    dead_letters = bindings[DEAD_LETTERS]
    where = dead_letters.directory if isinstance(dead_letters, FilesBinding) else dead_letters.uri
    control = command_catalog(job.name, plan.accepting if commands is not None else None, commands)
    graph = described_graph(job.name, plan, bindings)
    return CompiledJob(
        plan,
        lineage,
        sources,
        sinks,
        receivers,
        receipts,
        control,
        graph,
        where,
        topics,
        notes,
        # What a worker may hold of records, times their number.
        None if settings.memory_mb is None else plan.parallelism * plan.waiting_bytes,
    )


def _plan(
    job: JobDescription,
    settings: RunSettings,
    checkpoint: Checkpoint,
    bindings: Mapping[str, Binding],
    partitions: Mapping[str, tuple[str, ...]],
    *,
    gets_seed: bool,
) -> JobPlan:
    """Return the plan of the job, with what its tasks need to know about the bindings and the partitions of topics."""
    lineage = checkpoint.lineage(wanted_lineage(job, settings))
    timed = {n.name for n in job.graph.sources() if n.watermarks is not None}
    shares = settings.memory_shares(lineage.parallelism)
    return JobPlan(
        graph=job.graph,
        key_groups=job.key_groups,
        raw_streams=frozenset(n.name for n in job.graph.sources() if _has_raw(bindings[n.name])),
        keyed_sinks=frozenset(n.name for n in job.graph.sinks() if isinstance(bindings[n.name], _REJECTING)),
        strict=settings.strict,
        parallelism=lineage.parallelism,
        state_memory_bytes=(settings.state_memory_mb if shares is None else shares.state_mb) << 20,
        waiting_bytes=JobPlan.waiting_bytes if shares is None else shares.records_mb << 20,
        seed=checkpoint.seed if gets_seed or lineage.origin.has_state else None,
        partitions=partitions,
        in_real_time=bool(settings.checkpoint_interval_ms),
        model_folder=str(checkpoint.folder / MODELS),
        watches_models=True,
        origin_sinks=_origin_sinks(job, bindings) if settings.checkpoint_interval_ms else frozenset(),
        replayed=keep_partitions(
            checkpoint, lineage, {name: known for name, known in partitions.items() if name in timed}
        ),
    )


def _origin_sinks(job: JobDescription, bindings: Mapping[str, Binding]) -> frozenset[str]:
    """Return the sinks whose messages tell the origin of their records."""
    found = ((node, bindings[node.name]) for node in job.graph.sinks())
    return frozenset(
        node.name
        for node, binding in found
        if isinstance(binding, KafkaBinding | MqttBinding | WebhookBinding)
        and tells_origin(job, node, binding, in_real_time=True)
    )


def _sources(
    job: JobDescription, bindings: Mapping[str, Binding], place: _Place
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


def check_travels(job: JobDescription) -> None:
    """Check that the functions of the job can be sent to the workers. Raises JobDefinitionError for the first."""
    for node in job.graph.nodes.values():
        if isinstance(node, TransformNode):
            _check_travels(f"The function of the {node.kind} {node.name!r}", node.function)
        elif isinstance(node, ProcessNode):
            _check_travels(f"The function of step {node.step!r}", node.function)
            for edge in node.edges:
                if edge.key is not None:
                    _check_travels(f"The key function of the stream {edge.stream!r}", edge.key.function)


def _check_travels(what: str, function: object) -> None:
    try:
        Sealed(function)
    except Exception as e:  # objects that refuse to be pickled raise anything
        raise JobDefinitionError(
            f"{what} cannot be sent to the workers ({e}). Open connections, locks and the like where they are first "
            "used, not when the job is described."
        ) from e


def parse_bindings(
    job: JobDescription, given: Mapping[str, str], checkpoint: Checkpoint
) -> dict[str, Binding]:
    """Return the binding of every stream and sink of the job, and of the dead letters.

    Raises BindingError when one is missing, unknown or ambiguous.
    """
    found: dict[str, Binding] = {}
    for source in job.graph.sources():
        role: Any = "control" if source.is_control else "data"
        if source.name not in given:
            raise missing_binding(source.name, role)
        found[source.name] = parse_binding(source.name, given[source.name], role)
    for sink in job.graph.sinks():
        if sink.name in found:
            raise BindingError(
                f"A stream and a sink of the job {job.name!r} are both named {sink.name!r}; rename one."
            )
        if sink.name not in given:
            raise missing_binding(sink.name, "sink")
        found[sink.name] = parse_binding(sink.name, given[sink.name], "sink")
    unknown = sorted(set(given) - set(found) - {DEAD_LETTERS, COMMANDS, RECEIPTS})
    if unknown:
        raise BindingError(
            f"The job {job.name!r} has no stream {unknown[0]!r}; it has {', '.join(found)}, {COMMANDS}, {RECEIPTS} and "
            f"{DEAD_LETTERS}."
        )
    dead_letters = given.get(DEAD_LETTERS, f"jsonl:{checkpoint.folder / DEAD_LETTERS}")
    found[DEAD_LETTERS] = parse_binding(DEAD_LETTERS, dead_letters, "sink")
    if RECEIPTS in given:
        found[RECEIPTS] = parse_binding(RECEIPTS, given[RECEIPTS], "sink")
    if job.graph.steps():
        commands = given.get(COMMANDS, f"jsonl:{_command_folder(checkpoint)}")
        found[COMMANDS] = parse_binding(COMMANDS, commands, "control")
    elif COMMANDS in given:
        raise BindingError(
            f"The job {job.name!r} has no keyed step, so it takes no commands; leave {COMMANDS} out."
        )
    return found


def _command_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder where commands wait when the user binds the command stream to nothing else."""
    folder = checkpoint.folder / COMMANDS
    make_folder(folder)
    return folder


def wanted_lineage(job: JobDescription, settings: RunSettings) -> Lineage:
    """Return the lineage for a new checkpoint of the job."""
    streams = tuple(source.name for source in job.graph.sources())
    if job.graph.steps():
        streams = (*streams, COMMANDS)
    if wants_starts(job.graph):
        streams = (*streams, STARTS)
    parallelism = settings.parallelism or min(_cores(settings.master), job.key_groups)
    return Lineage(uuid.uuid4().hex[:12], job.name, job.key_groups, parallelism, streams)


def _cores(master: str) -> int:
    """Return the number of cores, as far as the master's name says."""
    local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if local is not None and local.group(1) not in (None, "*"):
        return int(local.group(1))
    if local is not None and local.group(1) is None:
        return 1
    return len(os.sched_getaffinity(0))


def _has_raw(binding: Binding) -> bool:
    """Return whether the source has raw bytes for each record."""
    if isinstance(binding, FilesBinding):
        return binding.format in LINE_FORMATS
    return not isinstance(binding, RateBinding)


@dataclass(frozen=True)
class _Place:
    """What the sources of a job share: plan, checkpoint and lineage, settings, topics, and fence."""

    plan: JobPlan
    checkpoint: Checkpoint
    lineage: Lineage
    settings: RunSettings
    topics: TopicIdentity
    fence: Callable[[], None]

    def keeping(self, stream: str, binding: FilesBinding) -> Keeping:
        """Return what a file stream keeps of the files that it has read."""
        lineage = self.checkpoint.stored_lineage()
        streams = () if lineage is None else lineage.streams
        oldest = (
            oldest_ends(self.checkpoint.spark_folder / "offsets", streams).get(stream, 0) if streams else 0
        )
        own = (self.checkpoint.folder / COMMANDS, self.checkpoint.inputs / stream)
        return Keeping(
            self.settings.retained_batches,
            oldest if isinstance(oldest, int) else 0,
            owned=Path(binding.directory).absolute() in own,
        )


def _source(node: SourceNode, binding: Binding, place: _Place) -> tuple[BoundSource, Receiver[Any] | None]:
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
            WantedParts.of(node.metadata, keys=place.plan.wants_keys(Port(node.id))),
            starts_small=not (node.is_control or place.settings.bounded or binding.is_paced),
        )
        name = binding.format
    elif isinstance(binding, FilesBinding):
        keeping = place.keeping(node.name, binding)
        files = FileLog(binding, where / f"{node.name}.files", keeping, place.fence)
        files.check()
        log, name = files, _file_format(node, binding)
    elif isinstance(binding, RateBinding):
        check_schema(node.name, node.record_type)
        log = RateLog(binding)
    else:
        assert not isinstance(binding, PostgresBinding | WebhookBinding | ConsoleBinding | DiscardBinding)
        folder = where / f"{node.name}.journal"
        receiver = _receiver(binding, folder, place)
        log = JournalLog(folder)
        name = _line_format(node.record_type) if isinstance(binding, SocketBinding) else binding.format
    lines = isinstance(binding, SocketBinding | FilesBinding) and name is not None
    fields = None
    if is_filled:
        fields = MessageFields(node.record_type, node.metadata, place.topics.known[node.name].names)
    kind = node.record_type if fields is None else node.body_type
    reader = StreamReader(place.plan, node, _format(name, node, kind), lines, fields)
    return BoundSource(node, log, reader), receiver


def _is_filled(node: SourceNode, binding: Binding) -> bool:
    """Return whether messages fill fields of a stream. Raises BindingError when its source cannot have them."""
    if not node.metadata or isinstance(binding, KafkaBinding):
        return bool(node.metadata)
    # Files that were made from records have all of their fields, and so have records from Python.
    if isinstance(binding, FilesBinding) and binding.format != "text":
        return False
    raise BindingError(
        f"Stream {node.name!r} takes {', '.join(name for name, _ in node.metadata)} from Kafka messages, which "
        f"{redacted(binding.uri)!r} does not have. Bind it to kafka://, to a folder (jsonl, csv, parquet) whose "
        "records have these fields, or describe the stream without metadata=."
    )


def _receiver(
    binding: SocketBinding | QueueBinding | RabbitStreamBinding | MqttBinding, folder: Path, place: _Place
) -> Receiver[Any]:
    bounded = place.settings.bounded
    if isinstance(binding, SocketBinding):
        return SocketReceiver(binding, JournalWriter(folder), bounded=bounded)
    # Each client takes a tenth of a second to load, which other jobs need not wait for.
    if isinstance(binding, QueueBinding):
        from penstock.sources.rabbitmq_queue import QueueReceiver, check_queue

        check_queue(binding)
        return QueueReceiver(binding, JournalWriter(folder), bounded=bounded)
    if isinstance(binding, MqttBinding):
        from penstock.mqtt.mqtt_connection import check_topic_filter
        from penstock.mqtt.mqtt_receiver import MqttReceiver, session_of

        check_topic_filter(binding)
        return MqttReceiver(
            binding, session_of(binding, place.lineage.id), JournalWriter(folder), bounded=bounded
        )
    from penstock.sources.rabbitmq_stream import StreamReceiver, check_stream

    check_stream(binding)
    return StreamReceiver(binding, JournalWriter(folder), bounded=bounded)


def _command_source(
    source: BoundSource, binding: Binding, place: _Place, settings: RunSettings
) -> BoundSource:
    """Return the source that reads commands from the input of a bound source. Raises BindingError for its format."""
    form = getattr(binding, "format", "json")
    known: dict[str, CommandFormat] = {"json": "json", "jsonl": "json", "protobuf": "protobuf"}
    if form not in known or (isinstance(binding, FilesBinding) and binding.format != "jsonl"):
        raise BindingError(
            f"Commands are JSON or protobuf, so {COMMANDS} cannot be bound to {redacted(binding.uri)!r}."
        )
    max_bytes = settings.max_command_bytes
    fetched = FetchedFiles(str(place.checkpoint.folder / "fetched"), max_bytes, settings.allowed)
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


def _format(name: Any, node: SourceNode, kind: RecordType) -> Format | None:
    if name is None or node is COMMAND_NODE:
        return None
    return format_of(name, kind, protobuf=node.protobuf, allow_nan=node.allow_nan)
