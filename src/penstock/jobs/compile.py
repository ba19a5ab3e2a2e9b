"""Compile a job: turn stream names and URIs into sources that read and sinks that write."""

from __future__ import annotations

import os
import re
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.base.durable import make_folder
from penstock.bindings.amazon_types import DynamoBinding, KinesisBinding
from penstock.bindings.parse import missing_binding, parse_binding
from penstock.bindings.types import (
    Binding,
    ExchangeBinding,
    FilesBinding,
    KafkaBinding,
    MqttBinding,
    PostgresBinding,
    PythonBinding,
    RedisBinding,
    SparkBinding,
    WebhookBinding,
)
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.described_graph import DescribedGraph, describe_graph
from penstock.checkpoints.state_place import state_place
from penstock.checkpoints.topic_partitions import keep_partitions
from penstock.commands.command_catalog import CommandCatalog, command_catalog
from penstock.commands.job_receipts import RECEIPT_TYPE, ReceiptWriter
from penstock.connectors.custom_class import bind_class, describe_guarantee, import_class
from penstock.control.control_pb2 import Receipt as ReceiptMessage  # type: ignore[attr-defined]  # generated code, without stubs
from penstock.errors import BindingError, JobDefinitionError
from penstock.jobs.cluster_state import check_reach, kept_answers, library_of_tasks, seed_of
from penstock.jobs.job_code import find_loaded_modules
from penstock.jobs.job_lookups import open_lookups
from penstock.jobs.job_sinks import open_sink, open_sinks, refuse_origin, tells_origin
from penstock.jobs.job_sources import SourcePlace, has_raw, open_sources
from penstock.jobs.known_topics import known_topics
from penstock.jobs.settings import RunSettings
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.command_reader import COMMAND_NODE
from penstock.runtime.packed_rows import DEAD_LETTERS
from penstock.runtime.plan import JobPlan, wants_starts
from penstock.runtime.writer import Writer
from penstock.sinks.base import Sink
from penstock.sources import kafka_source
from penstock.sources.found_files import no_fence
from penstock.sources.receiver import Receiver
from penstock.sources.topic_identity import TopicIdentity
from penstock.spark.lazy_pickle import Sealed
from penstock.streams.graph import COMMANDS, ProcessNode, TransformNode
from penstock.streams.job_description import JobDescription
from penstock.streams.own_streams import RECEIPTS, STARTS

__all__ = ["CompiledJob", "compile_job", "wanted_lineage"]

# The bindings of sinks that may reject a record.
_REJECTING: Final = (
    DynamoBinding,
    CassandraBinding,
    ExchangeBinding,
    KafkaBinding,
    KinesisBinding,
    MqttBinding,
    OpenSearchBinding,
    PostgresBinding,
    PythonBinding,
    RedisBinding,
    WebhookBinding,
)
_RECEIPT_MESSAGE: Final = ProtobufSource.of(ReceiptMessage)


@dataclass(frozen=True)
class CompiledJob:
    """A job with its sources and sinks, ready to run.

    `topics` are the Kafka topics that it reads, and `notes` are sentences for the user about them and about connectors
    of the user's own. `formats` are the streams that Spark loads before they begin, and `code` the modules of own
    connectors, which the workers need, by their paths below a folder of the import path. `max_batch_bytes` is the limit
    of what a micro-batch reads of a topic whose binding has none.
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
    formats: Mapping[str, SparkBinding]
    code: Mapping[str, Path]
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

    `fence` raises an error when a later run owns the checkpoint; sources call it before they write there. Raises
    BindingError for the first one that cannot be bound.
    """
    check_travels(job)
    apart = state_place(checkpoint.folder) is not None
    bindings = parse_bindings(job, settings.bindings, checkpoint, apart=apart)
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
    if apart and not settings.master.startswith("local"):
        check_reach(bindings, checkpoint.shown, settings.master)
    sinks = open_sinks(job, plan, bindings, in_real_time=bool(settings.checkpoint_interval_ms))
    sources, receivers = open_sources(
        job, bindings, SourcePlace(plan, checkpoint, lineage, settings, topics, fence, apart)
    )
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
    own = [import_class(one) for one in bindings.values() if isinstance(one, PythonBinding)]
    control = command_catalog(job.name, plan.accepting if commands is not None else None, commands)
    graph = describe_graph(job.name, plan, bindings)
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
        [*notes, *(describe_guarantee(one) for one in bindings.values() if isinstance(one, PythonBinding))],
        # Only streams are loaded from formats, not what sinks write to them.
        {node.name: one for node in read if isinstance(one := bindings[node.name], SparkBinding)},
        find_loaded_modules(own) if own else {},
        # The records that each worker may hold, for all workers together.
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
    # Only steps take a seed over.
    seeded = job.graph.steps() and (gets_seed or lineage.origin.has_state)
    return JobPlan(
        graph=job.graph,
        key_groups=job.key_groups,
        raw_streams=frozenset(n.name for n in job.graph.sources() if has_raw(bindings[n.name])),
        keyed_sinks=frozenset(n.name for n in job.graph.sinks() if isinstance(bindings[n.name], _REJECTING)),
        strict=settings.strict,
        parallelism=lineage.parallelism,
        state_memory_bytes=(settings.state_memory_mb if shares is None else shares.state_mb) << 20,
        waiting_bytes=JobPlan.waiting_bytes if shares is None else shares.records_mb << 20,
        seed=seed_of(checkpoint, settings.master) if seeded else None,
        partitions=partitions,
        in_real_time=bool(settings.checkpoint_interval_ms),
        lookups=open_lookups(job, bindings),
        answers=kept_answers(checkpoint),
        library=library_of_tasks(checkpoint, settings.master),
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
        if isinstance(
            binding,
            KafkaBinding | MqttBinding | ExchangeBinding | WebhookBinding | PythonBinding | KinesisBinding,
        )
        and tells_origin(job, node, binding, in_real_time=True)
    )


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
    job: JobDescription, given: Mapping[str, str], checkpoint: Checkpoint, *, apart: bool = False
) -> dict[str, Binding]:
    """Return the binding of every stream and sink of the job, and of the dead letters.

    By default these are in the checkpoint: in its folder, or `apart` from it on its store. Raises BindingError when one
    is missing, unknown or ambiguous.
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
    for table in job.graph.lookups:
        if table in found:
            raise BindingError(
                f"A stream and a lookup table of the job {job.name!r} are both named {table!r}; rename one."
            )
        if table not in given:
            raise missing_binding(table, "lookup")
        found[table] = parse_binding(table, given[table], "lookup")
    unknown = sorted(set(given) - set(found) - {DEAD_LETTERS, COMMANDS, RECEIPTS})
    if unknown:
        raise BindingError(
            f"The job {job.name!r} has no stream {unknown[0]!r}; it has {', '.join(found)}, {COMMANDS}, {RECEIPTS} and "
            f"{DEAD_LETTERS}."
        )
    own = f"{urllib.parse.quote(checkpoint.shown, safe=':/')}/{DEAD_LETTERS}?format=jsonl"
    dead_letters = given.get(DEAD_LETTERS, own if apart else _lines_in(checkpoint.folder / DEAD_LETTERS))
    found[DEAD_LETTERS] = parse_binding(DEAD_LETTERS, dead_letters, "sink")
    if RECEIPTS in given:
        found[RECEIPTS] = parse_binding(RECEIPTS, given[RECEIPTS], "sink")
    if job.graph.steps():
        commands = given.get(COMMANDS, _lines_in(_command_folder(checkpoint)))
        found[COMMANDS] = parse_binding(COMMANDS, commands, "control")
    elif COMMANDS in given:
        raise BindingError(
            f"The job {job.name!r} has no keyed step, so it takes no commands; leave {COMMANDS} out."
        )
    sinks = {sink.name for sink in job.graph.sinks()} | {DEAD_LETTERS, RECEIPTS}
    return {
        name: bind_class(one, is_sink=name in sinks) if isinstance(one, PythonBinding) else one
        for name, one in found.items()
    }


def _lines_in(folder: Path) -> str:
    """Return the URI of JSON lines in a folder, with its name escaped."""
    return f"jsonl:{urllib.parse.quote(str(folder))}"


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
