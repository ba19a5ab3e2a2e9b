"""Topic offsets: where the partitions of a Kafka topic begin and end at present."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # re-exported without saying so

from penstock.bindings.secrets import resolve_setting
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S
from penstock.errors import ExternalSystemError

__all__ = ["Place", "find_begins", "find_ends"]

Place: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""


def find_begins(
    admin: AdminClient, binding: KafkaBinding, places: Iterable[Place], timeout_s: float = ANSWER_TIMEOUT_S
) -> dict[Place, int]:
    """Return the first offset of each partition. Raises ExternalSystemError when no broker answers."""
    return _offsets(admin, binding, places, OffsetSpec.earliest(), timeout_s)  # type: ignore[no-untyped-call]  # confluent-kafka does not annotate it


def find_ends(
    admin: AdminClient, binding: KafkaBinding, places: Iterable[Place], timeout_s: float = ANSWER_TIMEOUT_S
) -> dict[Place, int]:
    """Return the offset after the last record of each partition that a consumer may see.

    A record of a transaction that is not committed yet, and all records after it, are beyond the end, unless the
    binding has `isolation.level=read_uncommitted`. Raises ExternalSystemError when no broker answers.
    """
    return _offsets(admin, binding, places, OffsetSpec.latest(), timeout_s)  # type: ignore[no-untyped-call]  # confluent-kafka does not annotate it


def _offsets(
    admin: AdminClient, binding: KafkaBinding, places: Iterable[Place], which: OffsetSpec, timeout_s: float
) -> dict[Place, int]:
    asked = {TopicPartition(topic, number): which for topic, number in places}
    if not asked:
        return {}
    answers = admin.list_offsets(asked, isolation_level=_isolation(binding), request_timeout=timeout_s)
    try:
        return {
            (one.topic, one.partition): answer.result(timeout_s + 1).offset for one, answer in answers.items()
        }
    except (KafkaException, TimeoutError) as e:
        # Errors of the client, such as a refused login, are only reported while it is polled.
        admin.poll(0)
        reason = e.args[0].str() if isinstance(e, KafkaException) else "no answer"
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the brokers {binding.servers} do not tell where {binding.place} "
            f"begins and ends ({reason}). Start the job again when they answer."
        ) from e


def _isolation(binding: KafkaBinding) -> IsolationLevel:
    if resolve_setting(binding.stream, binding.client, "isolation.level") == "read_uncommitted":
        return IsolationLevel.READ_UNCOMMITTED
    return IsolationLevel.READ_COMMITTED
