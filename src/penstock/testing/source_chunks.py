"""Source chunks: turn the records that a test sends into the chunks that a source would have read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import RecordType
from penstock.records.wire_formats import format_of
from penstock.runtime.message_fields import MessageFields
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.sources.base import SourceChunk
from penstock.sources.gathered_messages import WantedParts
from penstock.sources.partition_names import PartitionNames
from penstock.streams.graph import Port, SourceNode
from penstock.testing.kafka_message import KafkaMessage, bytes_or_none

__all__ = ["check_records", "source_tasks"]

_Form: TypeAlias = Literal["columns", "json", "bytes", "protobuf"]
_TEXTS: Final = (pa.string(), pa.binary())


def check_records(node: SourceNode, records: Sequence[Any]) -> None:
    """Raise SchemaError for an object that cannot be a record of a stream.

    Bytes, text and dicts can always be sent: they are decoded like those that a source reads, and may become dead
    letters.
    """
    for record in records:
        if isinstance(record, KafkaMessage):
            if _form_of(node.body_type, record.body) == "columns":
                raise SchemaError(
                    f"The body of {record!r} for the stream {node.name!r} is an object; send a dict, the bytes of its "
                    "JSON, or a protobuf message."
                )
        elif _form_of(node.record_type, record) == "columns":
            try:
                node.record_type.batch([record], check=False)
            except SchemaError as e:
                raise SchemaError(
                    f"{record!r} is not a record of the stream {node.name!r}, which has {node.record_type!r}: {e}. "
                    f"Send a {node.record_type.python_class.__name__}, a dict, or the bytes of its JSON."
                ) from None


def source_tasks(
    plan: JobPlan, node: SourceNode, partition: str, start: int, records: Sequence[Any]
) -> Iterator[tuple[StreamReader, list[SourceChunk]]]:
    """Yield readers for records of one source partition from an offset on, each with its chunks.

    Objects become columns, as from a source that decodes them; dicts, text, bytes and protobuf messages become
    bytes. Kafka messages become chunks like those of a topic.
    """
    has_raw = node.name in plan.raw_streams

    def form(record: Any) -> tuple[bool, _Form]:
        if isinstance(record, KafkaMessage):
            return True, _form_of(node.body_type, record.body, has_raw=True)
        return False, _form_of(node.record_type, record, has_raw=has_raw)

    for (is_message, kind), run in itertools.groupby(records, form):
        found = list(run)
        offsets = pa.array(range(start, start + len(found)), pa.int64())
        start += len(found)
        if kind == "columns":
            chunk = SourceChunk(partition, offsets, batch=node.record_type.batch(found, check=False))
            yield StreamReader(plan, node, None), [chunk]
            continue
        if is_message:
            yield _message_task(plan, node, kind, partition, offsets, found)
            continue
        raw = pa.array([_bytes_of(record) for record in found], pa.binary())
        wire = format_of(kind, node.record_type, protobuf=node.protobuf, allow_nan=node.allow_nan)
        yield StreamReader(plan, node, wire), [SourceChunk(partition, offsets, raw=raw)]


def _message_task(
    plan: JobPlan,
    node: SourceNode,
    form: _Form,
    partition: str,
    offsets: pa.Array,
    messages: list[KafkaMessage],
) -> tuple[StreamReader, list[SourceChunk]]:
    """Return a reader for Kafka messages, with the chunk that a topic reader would give it."""
    assert form != "columns"
    wanted = WantedParts.of(node.metadata, keys=plan.wants_keys(Port(node.id)))
    headers = {
        name: pa.array([bytes_or_none(one.headers.get(name)) for one in messages], pa.binary())
        for name in wanted.headers
    }
    chunk = SourceChunk(
        partition,
        offsets,
        raw=pa.array([_bytes_of(one.body) for one in messages], pa.binary()),
        keys=pa.array([bytes_or_none(one.key) for one in messages], pa.binary()) if wanted.keys else None,
        timestamps=pa.array([one.timestamp_ms for one in messages], pa.int64())
        if wanted.timestamps
        else None,
        headers=headers,
    )
    wire = format_of(form, node.body_type, protobuf=node.protobuf, allow_nan=node.allow_nan)
    # As if the stream were bound to a topic of its name.
    names = PartitionNames(node.name)
    fields = MessageFields(node.record_type, node.metadata, names) if node.metadata else None
    return StreamReader(plan, node, wire, message_fields=fields), [chunk]


def _form_of(kind: RecordType, record: Any, *, has_raw: bool = False) -> _Form:
    """Return the form in which a record of a test would come from its source."""
    if isinstance(record, bytes | str):
        fields = kind.fields
        return "bytes" if len(fields) == 1 and fields[0].arrow_type in _TEXTS else "json"
    if isinstance(record, dict):
        return "json"
    if hasattr(record, "SerializeToString"):
        return "protobuf"
    return "json" if has_raw else "columns"


def _bytes_of(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    if hasattr(record, "SerializeToString"):
        serialized: bytes = record.SerializeToString()
        return serialized
    return msgspec.json.encode(record)
