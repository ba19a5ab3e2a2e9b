"""Topics: rooms and job communicate through a real Kafka broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS, Batch, Record
from penstock.errors import ExternalSystemError
from penstock.runtime.cuts import read_cut

__all__ = ["TopicEvidence", "Topics"]

_PARTITIONS: Final = 2
_PATIENCE_S: Final = 30.0
_POLL_MESSAGES: Final = 10_000
_WAIT_S: Final = 0.01  # the client waits this long for more messages, even if some are there already
_END_OF_PARTITION: Final = KafkaError._PARTITION_EOF  # noqa: SLF001  # the client's public name for it


class Broker(Protocol):
    """The broker that the demo needs."""

    @property
    def bootstrap(self) -> str:
        """The address of the broker."""

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""


class Topics:
    """One topic for each stream. Commands are read as a `read_committed` consumer sees them."""

    def __init__(self, broker: Broker) -> None:
        self._servers = broker.bootstrap
        self.place: Final = f"Kafka at {self._servers}"
        for stream in (READINGS, SETTINGS, COMMANDS):
            broker.create_topic(stream, _PARTITIONS)
        base = f"kafka://{self._servers}"
        self.bindings: Final[Mapping[str, str]] = {
            # The rooms send before the job is up, and the job must not skip any of it.
            READINGS: f"{base}/{READINGS}?start=earliest",
            SETTINGS: f"{base}/{SETTINGS}",
            COMMANDS: f"{base}/{COMMANDS}?delivery=exactly-once",
        }
        self._producer = Producer({**_client(self._servers), "enable.idempotence": True, "linger.ms": 5})
        self._commands: _Reader | None = None
        self._encoder = msgspec.json.Encoder()

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Send records, keyed by sensor, and wait until the broker has them.

        Raises ExternalSystemError when the broker does not take them within 30 s.
        """
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:  # noqa: ARG001  # the client's signature
            if error is not None:
                failed.append(error)

        for record in records:
            value, key = self._encoder.encode(record), str(record["sensor_id"])
            self._producer.produce(stream, value, key, on_delivery=delivered)
            self._producer.poll(0)
        if self._producer.flush(_PATIENCE_S) or failed:
            raise ExternalSystemError(
                f"Kafka at {self._servers} did not accept records for the topic {stream!r}."
            )

    def new_commands(self) -> list[Record]:
        """Return the commands that were committed since the last call."""
        if self._commands is None:
            self._commands = _Reader(self._servers, COMMANDS)
        return self._commands.new()

    def evidence(self, checkpoint: str) -> TopicEvidence:
        """Return new evidence, from the first micro-batch on."""
        return TopicEvidence(Path(checkpoint), self._servers)

    def close(self) -> None:
        """Close the connections."""
        if self._commands is not None:
            self._commands.close()


class TopicEvidence:
    """A reader of the records of each micro-batch by their offsets, and of the committed commands."""

    tells_batch: Final = False

    def __init__(self, checkpoint: Path, servers: str) -> None:
        self._checkpoint = checkpoint
        self._inputs = {stream: _Reader(servers, stream) for stream in (SETTINGS, READINGS)}
        self._commands = _Reader(servers, COMMANDS)

    def batch(self, batch_id: int) -> Batch:
        """Return the input of a micro-batch."""
        ends = read_cut(self._checkpoint, batch_id).ends
        found = {}
        for stream, ranges in self._inputs.items():
            end = ends.get(stream, {})
            assert isinstance(end, dict)
            found[stream] = ranges.up_to({int(number): at for (_, number), at in end.items()})
        return Batch(batch_id, found[SETTINGS], found[READINGS])

    def commands(self, batch_id: int) -> list[Record]:  # noqa: ARG002  # the topic does not have it
        """Return the commands that were committed since the last call."""
        return self._commands.all_new()

    def close(self) -> None:
        """Close the connections."""
        for ranges in self._inputs.values():
            ranges.close()
        self._commands.close()


class _Reader:
    """A reader of the committed records of a topic, from the beginning of each partition."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = _consumer(servers, topic)
        self._topic = topic
        # How far each partition is read. Transaction markers take up offsets but are never returned as messages, so
        # messages alone do not show that the end is reached.
        self._position = dict.fromkeys(sorted(p.partition for p in self._consumer.assignment()), 0)
        self._waiting: dict[int, list[tuple[int, Record]]] = {partition: [] for partition in self._position}

    def new(self) -> list[Record]:
        """Return the records that are available now; others may still be on their way."""
        while messages := self._consumer.consume(_POLL_MESSAGES, _WAIT_S):
            self._take(messages)
        return self._returned(self._position)

    def all_new(self) -> list[Record]:
        """Return all records that were committed since the last call, in order for each key."""
        return self.up_to({partition: self._committed_end(partition) for partition in self._position})

    def up_to(self, ends: Mapping[int, int]) -> list[Record]:
        """Return the records before `ends` that were not returned yet, by partition and offset."""
        deadline = time.monotonic() + _PATIENCE_S
        while any(self._position[partition] < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise ExternalSystemError(f"Kafka did not return the topic {self._topic!r} up to {ends}.")
            self._take(self._consumer.consume(_POLL_MESSAGES, _WAIT_S))
        return self._returned(ends)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _take(self, messages: Sequence[Any]) -> None:
        for message in messages:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is None:
                self._waiting[partition].append((offset, json.loads(message.value())))
                self._position[partition] = offset + 1
            elif error.code() == _END_OF_PARTITION:
                self._position[partition] = max(self._position[partition], offset)
            else:
                raise ExternalSystemError(f"Kafka did not return the records that were sent: {error}")

    def _returned(self, ends: Mapping[int, int]) -> list[Record]:
        found: list[Record] = []
        for partition, waiting in self._waiting.items():
            count = sum(offset < ends.get(partition, 0) for offset, _ in waiting)
            found += [record for _, record in waiting[:count]]
            del waiting[:count]
        return found

    def _committed_end(self, partition: int) -> int:
        place = TopicPartition(self._topic, partition)
        _, end = self._consumer.get_watermark_offsets(place, timeout=_PATIENCE_S)
        return int(end)


def _consumer(servers: str, topic: str) -> Consumer:
    """Make a consumer of committed records on all partitions of a topic, from the beginning."""
    settings = {
        **_client(servers),
        "group.id": f"penstock-demo-{uuid.uuid4().hex[:8]}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
    except KafkaException as e:
        raise ExternalSystemError(f"Kafka at {servers} does not answer: {e}") from e
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


def _client(servers: str) -> dict[str, Any]:
    # Without a callback, librdkafka logs every connection that fails when the broker stops.
    return {"bootstrap.servers": servers, "error_cb": _ignore, "log_level": 0}


def _ignore(error: Any) -> None:
    """Ignore an error, since the result of the call reports it."""
