"""Message sizes: the limits of a topic and its producer, and the messages that exceed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    ConfigResource,
    ResourceType,
)

from penstock.bindings.secrets import resolve_setting
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client
from penstock.errors import ExternalSystemError
from penstock.sinks.message_parts import Headers

__all__ = ["MessageLimit", "keyless", "limit_of", "oversized", "with_limit"]

_SETTING: Final = "message.max.bytes"
_TOPIC_SETTING: Final = "max.message.bytes"
_CLEANUP_SETTING: Final = "cleanup.policy"
# librdkafka's default, and the least and the most that it accepts.
_DEFAULT_BYTES: Final = 1_000_000
_RANGE: Final = (1_000, 1_000_000_000)
_BATCH_BYTES: Final = 1_000_000
_NOT_TOLD: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001  # librdkafka's own codes begin so
)

# A batch of one record has a header of 61 bytes. The record has its length, attributes, two deltas to the header (both
# 0), key and value with their lengths, and the number of its headers (0). Numbers take 1 to 5 bytes of 7 bits each.
_HEADER_BYTES: Final = 61
_FIXED_BYTES: Final = 4
_MAX_OVERHEAD: Final = _HEADER_BYTES + _FIXED_BYTES + 3 * 5
_VARINT_BOUNDS: Final = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27])


class MessageLimit(msgspec.Struct, frozen=True):
    """The limits of a topic (`max.message.bytes`) and its producer (`message.max.bytes`), None where unknown.

    `needs_keys` says that the topic is compacted, so that its brokers refuse a message without a key.
    """

    topic: int | None = None
    producer: int | None = None
    needs_keys: bool = False

    @property
    def max_bytes(self) -> int:
        """The most bytes that a message may have, including what Kafka adds to its key and value."""
        known = [limit for limit in (self.topic, self.producer) if limit is not None]
        return min(known, default=_DEFAULT_BYTES)

    def reason(self, size: int, topic: str) -> str:
        """Return why a message of this many bytes is not written."""
        if self.topic == self.max_bytes:
            remedy = f"the topic's {_TOPIC_SETTING} is {self.topic}; raise it and start the job again"
        else:
            remedy = f"the sink's {_SETTING} is {self.max_bytes}; raise it in the URI"
        return (
            f"The message of {size} bytes, key and Kafka's own included, is too large for the topic {topic!r}: "
            f"{remedy}."
        )


def limit_of(binding: KafkaBinding, settings: Mapping[str, Any]) -> MessageLimit:
    """Return what the topic and the producers of a binding accept now.

    A broker may refuse to report the settings of its topics; then only what the URI says is known.
    """
    given = resolve_setting(binding.stream, binding.client, _SETTING)
    errors = LastError()
    admin = build_client(AdminClient, binding, settings, errors)
    asked = ConfigResource(ResourceType.TOPIC, binding.topic)
    try:
        (found,) = admin.describe_configs([asked], request_timeout=ANSWER_TIMEOUT_S).values()
        told = found.result(ANSWER_TIMEOUT_S + 1)
        topic = int(told[_TOPIC_SETTING].value)
        # Servers of others that speak Kafka's protocol may have topics of one kind only.
        is_compacted = _CLEANUP_SETTING in told and "compact" in told[_CLEANUP_SETTING].value
    except KafkaException as e:
        if e.args[0].code() not in _NOT_TOLD:
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the broker {binding.servers} does not report the settings of the topic "
                f"{binding.topic!r} ({errors.after(e.args[0])}). Start the job again when the broker is healthy."
            ) from e
        topic, is_compacted = None, False
    return MessageLimit(topic, None if given is None else int(given), is_compacted)


def with_limit(binding: KafkaBinding, limit: MessageLimit) -> KafkaBinding:
    """Return the binding with producers that keep messages and batches within a limit; topics refuse both beyond it."""
    most = str(min(max(limit.max_bytes, _RANGE[0]), _RANGE[1]))
    own = {_SETTING: most, "batch.size": str(min(limit.max_bytes, _BATCH_BYTES))}
    return replace(binding, client={**own, **binding.client})


def keyless(limit: MessageLimit, keys: pa.Array | None, count: int, topic: str) -> dict[int, str]:
    """Return the reasons, by row, for messages that are not written because they lack the key that they need.

    >>> list(keyless(MessageLimit(needs_keys=True), pa.array([b"a", None]), 2, "t"))
    [1]
    """
    if not limit.needs_keys:
        return {}
    rows = range(count) if keys is None else np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
    reason = (
        f"The message has no key, and the topic {topic!r} is compacted (cleanup.policy), so it takes none without. "
        "Name a field that always has a value with key= in the URI."
    )
    return {int(row): reason for row in rows}


def oversized(
    values: pa.Array, keys: pa.Array | None, max_bytes: int, headers: Headers | None = None
) -> dict[int, int]:
    """Return the sizes of messages that exceed a limit, by their rows."""
    total = values.get_total_buffer_size() + (0 if keys is None else keys.get_total_buffer_size())
    if not headers and total + _MAX_OVERHEAD <= max_bytes:
        # Not even all of them together are too large.
        return {}
    # A deletion has no body.
    value_bytes = pc.fill_null(pc.binary_length(values), 0)
    contents = value_bytes if keys is None else pc.add(value_bytes, pc.fill_null(pc.binary_length(keys), 0))
    if not headers and (pc.max(contents).as_py() or 0) + _MAX_OVERHEAD <= max_bytes:
        return {}
    sizes = _wire_bytes(values, keys, headers or {})
    return {int(row): int(sizes[row]) for row in np.flatnonzero(sizes > max_bytes)}


def _wire_bytes(values: pa.Array, keys: pa.Array | None, headers: Headers) -> npt.NDArray[np.int64]:
    """Return the size of each message as the only record of an uncompressed batch."""
    body = np.full(len(values), _FIXED_BYTES, np.int64)
    for column in (values, keys):
        lengths = np.zeros(len(values), np.int64) if column is None else _lengths(column)
        body += lengths + _varint_bytes(lengths)
    counts = np.zeros(len(values), np.int64)
    for name, column in headers.items():
        name_bytes = np.array(len(name.encode()), np.int64)
        lengths = _lengths(column)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        body += there * (name_bytes + _varint_bytes(name_bytes) + lengths + _varint_bytes(lengths))
        counts += there
    # The number of headers takes the one byte of 0, or more.
    body += _varint_bytes(counts) - 1
    return _HEADER_BYTES + _varint_bytes(body) + body


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    found = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int64)


def _varint_bytes(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes numbers take as signed varints; -1 takes as many as 0."""
    return 1 + np.searchsorted(_VARINT_BOUNDS, numbers, side="right")
