"""Message parts: make the values, keys, headers and partitions of a Kafka sink's messages from records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bindings.types import RECORD_KEY, KafkaBinding
from penstock.errors import BindingError, SchemaError
from penstock.records.cloud_events import EVENT_CONTENT_TYPE, binary_attributes
from penstock.records.types import RecordType
from penstock.sinks.base import RecordOrigin, TaskContext
from penstock.sinks.message_partitions import murmur2

__all__ = [
    "ORIGIN_HEADER",
    "Headers",
    "Messages",
    "check_parts",
    "hashes_of",
    "headers_of",
    "keys_of",
    "origins_of",
]

Headers: TypeAlias = Mapping[str, pa.Array]
"""The headers of messages, as a binary column for each name; a message whose value is null has no such header."""

ORIGIN_HEADER: Final = "penstock-origin"
"""The header that tells messages apart, so that a reader can leave out those that are written again."""


@dataclass(frozen=True)
class Messages:
    """Messages as binary columns.

    `hashes` choose their partitions instead of the keys. A message whose hash is null has the partition of its key.
    """

    values: pa.Array
    keys: pa.Array | None = None
    headers: Headers = field(default_factory=dict)
    hashes: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, begin: int, count: int) -> Messages:
        """Return consecutive messages."""
        return Messages(
            self.values.slice(begin, count),
            None if self.keys is None else self.keys.slice(begin, count),
            {name: column.slice(begin, count) for name, column in self.headers.items()},
            None if self.hashes is None else self.hashes.slice(begin, count),
        )

    def filter(self, mask: pa.Array) -> Messages:
        """Return the messages for which a mask is true."""
        return Messages(
            self.values.filter(mask),
            None if self.keys is None else self.keys.filter(mask),
            {name: column.filter(mask) for name, column in self.headers.items()},
            None if self.hashes is None else self.hashes.filter(mask),
        )


def check_parts(binding: KafkaBinding, kind: RecordType) -> None:
    """Raise BindingError when a sink names a field that its records lack, or that cannot be a part of messages."""
    named = [("key", name) for name in filter(None, [binding.key_field])]
    if binding.partition_by not in (None, RECORD_KEY):
        named.append(("partition_by", str(binding.partition_by)))
    named += [("headers", name) for name, _ in binding.header_fields]
    for parameter, name in named:
        try:
            found = kind.field(name).arrow_type
        except SchemaError as e:
            raise BindingError(f"Sink {binding.stream!r}: {parameter}={name}, but {e}") from None
        if not (pa.types.is_string(found) or pa.types.is_binary(found) or pa.types.is_integer(found)):
            raise BindingError(
                f"Sink {binding.stream!r}: {parameter}={name}, but that field is {found}; keys, headers and what "
                "chooses a partition are text, bytes or integers."
            )


def keys_of(binding: KafkaBinding, batch: pa.RecordBatch, keys: pa.Array | None) -> pa.Array | None:
    """Return the keys of messages: the field that the URI names, else those that the records come with."""
    return keys if binding.key_field is None else _as_bytes(batch.column(binding.key_field))


def hashes_of(binding: KafkaBinding, batch: pa.RecordBatch, keys: pa.Array | None) -> pa.Array | None:
    """Return the hashes that choose the partitions of messages; None if their keys do. `keys` come with the records."""
    if binding.partition_by is None:
        return None
    chosen = keys if binding.partition_by == RECORD_KEY else _as_bytes(batch.column(binding.partition_by))
    return pa.nulls(len(batch), pa.int32()) if chosen is None else murmur2(chosen)


def headers_of(
    binding: KafkaBinding, batch: pa.RecordBatch, context: TaskContext, origin: RecordOrigin | None
) -> Headers:
    """Return the headers of messages: the fields that the URI names, and their origin if it says so."""
    found = {header: _as_bytes(batch.column(name)) for name, header in binding.header_fields}
    events = binding.events
    if events is not None:
        kind = b"application/json" if events.is_binary else EVENT_CONTENT_TYPE.encode()
        found["content-type"] = pa.array([kind] * len(batch), pa.binary())
        if events.is_binary:
            named = binary_attributes(batch, events.attributes, (events.id, events.source, events.type))
            found |= {f"ce_{name}": column for name, column in named.items()}
    if binding.origin and origin is not None:
        found[ORIGIN_HEADER] = origins_of(context, origin)
    return found


def _as_bytes(column: pa.Array) -> pa.Array:
    """Convert text and bytes unchanged, and integers to decimal digits."""
    return column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())


def origins_of(context: TaskContext, origin: RecordOrigin) -> pa.Array:
    """Return `LINEAGE/PLACE/BATCH/OFFSET/NUMBER` for each record, or `LINEAGE/PLACE/OFFSET/NUMBER/NUMBER`.

    In one place the three numbers of a later record are larger.
    """
    place = [context.lineage, origin.branch, quote(origin.stream, safe="")]
    offsets = origin.offsets.to_numpy(zero_copy_only=False)
    numbers = _text(_numbers(offsets))
    if origin.names is not None:
        before = "/".join(filter(None, place))
        return pc.binary_join_element_wise(before, origin.names, numbers, "/").cast(pa.binary())
    place.append(quote(origin.partition, safe=""))
    # The offsets of a source are its own. Those of a step count within a micro-batch.
    batch = "0" if origin.is_source else str(context.batch_id)
    before = "/".join([*filter(None, place), batch])
    found = pc.binary_join_element_wise(before, _text(offsets), numbers, "/")
    return found.cast(pa.binary())


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.string())


def _numbers(offsets: np.ndarray) -> np.ndarray:
    """Return the number of each record among those of one offset, which `flat_map` makes."""
    if not len(offsets):
        return offsets
    starts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
    return np.arange(len(offsets)) - np.repeat(starts, np.diff(np.append(starts, len(offsets))))
