"""Topic ends: how much of a Kafka topic waits to be read, and up to where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client, check_topic
from penstock.errors import ExternalSystemError

__all__ = ["ends_beyond"]


def ends_beyond(
    binding: KafkaBinding, settings: Mapping[str, Any], read_to: Mapping[str, int] | None, most: int
) -> dict[int, int] | None:
    """Return where the partitions of a topic end, when more than `most` records wait there; otherwise None.

    `settings` are librdkafka's, and `read_to` the next offsets by partition; without them reading begins where the
    binding says. Raises ExternalSystemError when no broker answers.
    """
    if read_to is None and binding.start != "earliest":
        return None
    partitions = range(check_topic(binding, settings))
    admin = build_client(AdminClient, binding, settings, LastError())
    ends = _offsets(admin, binding, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    begins = _offsets(admin, binding, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    known = read_to or {}
    waiting = sum(ends[n] - max(known.get(str(n), 0), begins[n]) for n in partitions)
    return ends if waiting > most else None


def _offsets(
    admin: AdminClient, binding: KafkaBinding, partitions: range, which: OffsetSpec
) -> dict[int, int]:
    asked = {TopicPartition(binding.topic, number): which for number in partitions}
    answers = admin.list_offsets(
        asked,
        # A job does not see what a transaction has not committed yet.
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=ANSWER_TIMEOUT_S,
    )
    try:
        return {
            place.partition: answer.result(ANSWER_TIMEOUT_S + 1).offset for place, answer in answers.items()
        }
    except (KafkaException, TimeoutError) as e:
        reason = e.args[0].str() if isinstance(e, KafkaException) else "no answer"
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the brokers {binding.servers} do not report where the topic {binding.topic!r} "
            f"ends ({reason}). Start the job again when they answer."
        ) from e
