"""Kafka source: finds the topics of a binding before the start."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client, check_topic, find_topics

__all__ = ["preflight"]


def preflight(binding: KafkaBinding) -> dict[str, int]:
    """Check in the driver that a broker answers and the topic exists; create it if the binding says so.

    Returns the number of partitions by topic. A pattern may have none yet.

    Raises ExternalSystemError or BindingError.
    """
    if binding.pattern is None:
        return {binding.topic: check_topic(binding, binding.client)}
    errors = LastError()
    admin = build_client(AdminClient, binding, binding.client, errors)
    return find_topics(admin, binding, errors, ANSWER_TIMEOUT_S)
