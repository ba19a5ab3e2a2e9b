"""Message partitions: the hash that chooses the partition of a message, and how many partitions its topic has."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Producer

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, count_partitions
from penstock.errors import PlaceMissingError

__all__ = ["BY_KEY", "PartitionCount", "murmur2", "partitions_of"]

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)
_WORD: Final = 4
# librdkafka's own partitioner sees new partitions after up to five minutes.
_ASKED_AGAIN_S: Final = 60.0
BY_KEY: Final = -1
"""The partition of a message whose key chooses it."""

_Words = npt.NDArray[np.uint32]


def murmur2(values: pa.Array) -> pa.Array:
    """Return the hash of Kafka's Java client for binary values, without its sign; null for null.

    Source: `org.apache.kafka.common.utils.Utils.murmur2`, and `toPositive` of its result.

    >>> murmur2(pa.array([b"21", b"foobar", None])).to_pylist()
    [1173551340, 1357151166, None]
    """
    count = len(values)
    _, places, content = values.buffers()
    ends = np.frombuffer(places, np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    found = _SEED ^ lengths.astype(np.uint32)
    words = lengths // _WORD
    for number in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > number)
        word = _words(data, starts[rows] + number * _WORD, _WORD) * _MULTIPLIER
        word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
        found[rows] = (found[rows] * _MULTIPLIER) ^ word
    for rest in range(1, _WORD):
        rows = np.flatnonzero(lengths % _WORD == rest)
        found[rows] = (found[rows] ^ _words(data, ends[1:][rows] - rest, rest)) * _MULTIPLIER
    found = (found ^ (found >> np.uint32(13))) * _MULTIPLIER
    found = (found ^ (found >> np.uint32(15))) & _POSITIVE
    return pa.array(found.astype(np.int32), mask=values.is_null().to_numpy(zero_copy_only=False))


def _words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], size: int) -> _Words:
    """Return the little-endian numbers of some bytes at each start."""
    found = np.zeros(len(starts), np.uint32)
    for place in range(size):
        found |= data[starts + place].astype(np.uint32) << np.uint32(8 * place)
    return found


def partitions_of(hashes: pa.Array, count: int) -> list[int]:
    """Return the partition of each message among `count`; BY_KEY where there is no hash."""
    return [BY_KEY if found is None else found % count for found in hashes.to_pylist()]


class PartitionCount:
    """The number of partitions of a sink's topic, which a producer asks for again now and then.

    Topics get partitions while a job runs, and Kafka's clients see that likewise after some time.
    """

    def __init__(self, client: Producer, binding: KafkaBinding, errors: LastError) -> None:
        self._client: Final = client
        self._binding: Final = binding
        self._errors: Final = errors
        self._known = 0
        self._asked_s = 0.0

    def get(self) -> int:
        """Return the number. Raises ExternalSystemError when no broker tells it."""
        if not self._known or time.monotonic() - self._asked_s > _ASKED_AGAIN_S:
            found = count_partitions(self._client, self._binding, self._errors, ANSWER_TIMEOUT_S)
            if found is None:
                raise PlaceMissingError(
                    f"Sink {self._binding.stream!r}: the topic {self._binding.topic!r} does not exist on "
                    f"{self._binding.servers} any more. Create it again."
                )
            self._known, self._asked_s = found, time.monotonic()
        return self._known
