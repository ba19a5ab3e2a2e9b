"""Binding checks: the job of a file can be loaded, and its bound places answer."""

from __future__ import annotations

import dataclasses
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.bindings.amazon_types import DynamoBinding, KinesisBinding
from penstock.bindings.secrets import redact, resolve_settings
from penstock.bindings.types import (
    Binding,
    DeltaBinding,
    ExchangeBinding,
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
    RedisBinding,
    SocketBinding,
    SparkBinding,
    WebhookBinding,
)
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.connectors.custom_class import describe_guarantee
from penstock.databases.looked_up_table import PostgresLookup
from penstock.databases.postgres_connections import as_external, open_connection
from penstock.databases.postgres_table import check_place
from penstock.databases.row_json import RowShape
from penstock.databases.table_receiver import check_table
from penstock.doctor.findings import Finding, failed, fine, refused
from penstock.doctor.storage import Folder, check_folder
from penstock.errors import PenstockError, PlaceMissingError
from penstock.jobs.compile import check_travels, parse_bindings
from penstock.jobs.job_loader import load_job
from penstock.jobs.job_lookups import find_lookup_keys
from penstock.lakes import iceberg_catalog
from penstock.lakes.delta_table import open_existing_table
from penstock.lakes.lake_log import LakeLog
from penstock.registries.message_formats import MessageBinding, check_registry
from penstock.sinks.kafka_producers import connection_settings
from penstock.sinks.object_sink import check_bucket, open_folder
from penstock.sources import kafka_source
from penstock.sources.file_source import FileLog
from penstock.sources.object_log import ObjectLog
from penstock.stores.cassandra_sink import check_table as check_table_of_cassandra
from penstock.stores.opensearch_clients import check_server as check_search
from penstock.stores.redis_clients import check_server as check_redis
from penstock.streams.job_description import JobDescription
from penstock.webhooks.webhook_requests import check_server

__all__ = ["check_binding", "examine_bindings", "try_to_load"]

_MIN_BYTES: Final = 1 << 28
_GOOD_BYTES: Final = 1 << 30
_SHOWN_TOPICS: Final = 5


def try_to_load(job_file: str) -> tuple[JobDescription | None, Finding]:
    """Load the job of a file; None if it cannot run. Returns a finding with it."""
    try:
        job = load_job(job_file).job
        job.check()
        check_travels(job)
    except PenstockError as e:
        return None, refused("job", e)
    names = [source.name for source in job.graph.sources()] + [sink.name for sink in job.graph.sinks()]
    return job, fine("job", f"{job.name!r} in {job_file}, with the streams and sinks {', '.join(names)}")


def examine_bindings(job: JobDescription, given: Mapping[str, str]) -> Iterator[Finding]:
    """Check each bound place. Starts nothing, reads no record, and creates no topic, queue or folder."""
    given = {**job.bound_by_default(), **given}
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as folder:
            # Unbound streams are in the checkpoint; here they only need some place.
            bindings = parse_bindings(job, given, Checkpoint(Path(folder)))
    except PenstockError as e:
        yield refused("bindings", e)
        return
    sources = {source.name for source in job.graph.sources()} | {"commands"}
    for name in given:
        if name in job.graph.lookups:
            yield _check_lookup(job, name, bindings[name])
            continue
        yield check_binding(name, bindings[name], is_source=name in sources)


def _check_lookup(job: JobDescription, name: str, binding: Binding) -> Finding:
    """Check that records can be looked up in a table."""
    check = f"-D {name}"
    assert isinstance(binding, PostgresBinding)
    try:
        for fields in find_lookup_keys(job, name):
            PostgresLookup.of(binding, job.graph.lookups[name].schema).check(fields)
    except PenstockError as e:
        return refused(check, e)
    return fine(check, f"{binding.place} can be looked up")


def check_binding(name: str, binding: Binding, *, is_source: bool) -> Finding:
    """Check that the place of one binding answers."""
    check = f"-D {name}"
    if isinstance(binding, FilesBinding) and not is_source:
        return check_folder(Folder(check, Path(binding.directory), check, _MIN_BYTES, _GOOD_BYTES))
    if isinstance(binding, SocketBinding):
        return _resolve(check, binding)
    careful = _not_created(binding)
    try:
        answer = _answer(careful, is_source=is_source)
        if isinstance(binding, MessageBinding) and binding.registry is not None:
            check_registry(binding, binding.registry)
            answer += f"; the schema registry {binding.registry.url} answers"
        return fine(check, answer)
    except PlaceMissingError as e:
        if careful != binding:
            return fine(
                check, f"{redact(binding.uri)} does not exist yet; the job creates it{_with_it(binding)}"
            )
        return refused(check, e)
    except PenstockError as e:
        return refused(check, e)


def _answer(binding: Binding, *, is_source: bool) -> str:
    """Ask a place, and return its answer. Raises a PenstockError as the start of a job does."""
    if isinstance(binding, FilesBinding):
        # The list of found files belongs to a checkpoint; this check does not touch it.
        FileLog(binding, os.devnull).check()
        return f"the folder {binding.directory} can be read"
    if isinstance(binding, KafkaBinding):
        if not is_source:
            check_topic(binding, connection_settings(binding))
        elif binding.pattern is not None:
            return _describe_matching(binding)
        else:
            kafka_source.preflight(binding)
        return f"{binding.servers} has the topic {binding.topic}"
    if isinstance(binding, CassandraBinding):
        check_table_of_cassandra(binding)
        return f"{binding.address} has the table {binding.keyspace}.{binding.table}"
    if isinstance(binding, OpenSearchBinding):
        return f"{binding.url} answers as {check_search(binding)}; nothing was written"
    if isinstance(binding, PostgresBinding | ObjectsBinding | DeltaBinding | IcebergBinding | RedisBinding):
        return _answer_of_store(binding, is_source=is_source)
    if isinstance(binding, QueueBinding | ExchangeBinding | RabbitStreamBinding | MqttBinding):
        return _answer_of_broker(binding, is_source=is_source)
    if isinstance(binding, KinesisBinding | DynamoBinding):
        return _answer_of_amazon(binding)
    if isinstance(binding, WebhookBinding):
        return f"{check_server(binding)} takes connections; nothing was sent"
    if isinstance(binding, SparkBinding):
        resolve_settings(binding.stream, binding.options)
        if not is_source:
            return f"Spark writes each micro-batch in the format {binding.format!r}, at least once; it was not asked"
        return f"Spark loads the format {binding.format!r} at the first start; it was not asked"
    if isinstance(binding, PythonBinding):
        resolve_settings(binding.stream, binding.options)
        return f"{describe_guarantee(binding)[:-1]}; its class was imported, and not asked"
    if isinstance(binding, HttpListenBinding):
        from penstock.webhooks.http_receiver import find_token, listen

        find_token(binding)
        listen(binding).close()
        return f"the job can listen at {binding.host}:{binding.port}"
    return {"console": "standard output", "rate": "numbers by the clock", "discard": "nowhere"}[
        binding.uri.partition(":")[0].lower()
    ]


def _answer_of_store(
    binding: PostgresBinding | ObjectsBinding | DeltaBinding | IcebergBinding | RedisBinding,
    *,
    is_source: bool,
) -> str:
    if isinstance(binding, PostgresBinding) and is_source:
        check_table(binding, RowShape(pa.schema([])))
        return (
            f"{binding.host}:{binding.port} has the table {binding.schema}.{binding.table}, which can be read"
        )
    if isinstance(binding, PostgresBinding):
        with open_connection(binding, "penstock doctor") as connection, as_external(binding):
            check_place(connection, binding)
        return f"{binding.host}:{binding.port} has the table {binding.schema}.{binding.table}"
    if isinstance(binding, ObjectsBinding) and is_source:
        ObjectLog(binding, open_folder, os.devnull).check()
        return f"the bucket {binding.bucket} can be listed"
    if isinstance(binding, ObjectsBinding):
        check_bucket(binding)
        return f"the bucket {binding.bucket} answers; nothing was written"
    if isinstance(binding, DeltaBinding | IcebergBinding) and is_source:
        LakeLog(binding, os.devnull).check()
        return f"{binding.place} has a table, which can be read"
    if isinstance(binding, DeltaBinding):
        return f"{binding.directory} has the Delta table, in version {open_existing_table(binding).version()}"
    if isinstance(binding, IcebergBinding):
        snapshot = iceberg_catalog.open_existing_table(binding).current_snapshot()
        found = "no snapshot yet" if snapshot is None else f"the snapshot {snapshot.snapshot_id}"
        return f"the catalog has the Iceberg table {binding.place}, with {found}"
    check_redis(binding)
    return f"{binding.host}:{binding.port} lets the job connect to the database {binding.database}"


def _answer_of_broker(
    binding: QueueBinding | ExchangeBinding | RabbitStreamBinding | MqttBinding, *, is_source: bool
) -> str:
    # Each client takes a tenth of a second to load.
    if isinstance(binding, QueueBinding):
        from penstock.rabbitmq.rabbitmq_queue import check_queue

        check_queue(binding)
        return f"{binding.virtual_host} has the queue {binding.queue}"
    if isinstance(binding, ExchangeBinding):
        from penstock.rabbitmq.rabbitmq_publisher import check_exchange

        check_exchange(binding)
        if binding.exchange:
            return f"{binding.virtual_host} has the exchange {binding.exchange}"
        if "{" in binding.routing_key:
            return f"{binding.virtual_host} lets the job connect"
        return f"{binding.virtual_host} has the queue {binding.routing_key}"
    if isinstance(binding, MqttBinding):
        from penstock.mqtt.mqtt_connection import check_connection, check_topic_filter

        if not is_source:
            check_connection(binding)
            return f"{binding.host}:{binding.port} lets the job connect"
        check_topic_filter(binding)
        return f"{binding.host}:{binding.port} lets the job subscribe to {binding.topic}"
    from penstock.rabbitmq.rabbitmq_stream import check_stream

    check_stream(binding)
    return f"{binding.virtual_host} has the stream {binding.name}"


def _answer_of_amazon(binding: KinesisBinding | DynamoBinding) -> str:
    if isinstance(binding, DynamoBinding):
        from penstock.stores.dynamo_sink import check_table as check_dynamo

        return f"{binding.where} answers; its key is {', '.join(check_dynamo(binding))}"
    from penstock.kinesis.kinesis_stream import check_stream as check_kinesis

    stream = check_kinesis(binding)
    hours = stream.retention_ms // 3_600_000
    return f"{binding.where} has {len(stream.shards)} shards, and keeps records for {hours} h"


def _describe_matching(binding: KafkaBinding) -> str:
    """Say which topics match the pattern of a binding now."""
    topics = list(kafka_source.preflight(binding))
    if not topics:
        return f"{binding.servers} has no topic yet that matches {binding.topic}; the job reads those that appear"
    shown = ", ".join(topics[:_SHOWN_TOPICS])
    more = f" and {len(topics) - _SHOWN_TOPICS} more" if len(topics) > _SHOWN_TOPICS else ""
    return f"{binding.servers} has {shown}{more}, which match {binding.topic}"


def _resolve(check: str, binding: SocketBinding) -> Finding:
    """Check that the host of a socket has an address. Does not connect, which would take lines from the job."""
    try:
        socket.getaddrinfo(binding.host, binding.port)
    except OSError as e:
        return failed(
            check, f"the host {binding.host} has no address ({e.strerror or e})", "Correct it in the URI."
        )
    return fine(
        check,
        f"the host {binding.host} has an address; not connected, since that takes lines from the job",
    )


def _with_it(binding: Binding) -> str:
    """Return what a job creates with a missing place: a new catalog, if the path of the old one is wrong."""
    file = iceberg_catalog.catalog_file(binding) if isinstance(binding, IcebergBinding) else None
    return f", and a new catalog {file}" if file is not None and not file.exists() else ""


def _not_created(binding: Binding) -> Binding:
    """Return the same binding, which does not create what is missing."""
    if isinstance(binding, KafkaBinding):
        return dataclasses.replace(binding, create_topic=False)
    if isinstance(binding, QueueBinding | RabbitStreamBinding | ExchangeBinding):
        return dataclasses.replace(binding, create=False)
    if isinstance(binding, DeltaBinding | IcebergBinding | PostgresBinding):
        return dataclasses.replace(binding, create_table=False)
    return binding
