"""Kafka source: checks a topic before the start."""

from __future__ import annotations

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.sources.gathered_messages import partition_name

__all__ = ["preflight"]


def preflight(binding: KafkaBinding) -> tuple[str, ...]:
    """Check in the driver that a broker answers and the topic exists; create it if the binding says so.

    Returns the names of the topic's partitions, as chunks have them.

    Raises ExternalSystemError or BindingError.
    """
    return tuple(map(partition_name, range(check_topic(binding, binding.client))))
