"""Kafka groups of a sink: the newest micro-batch that its transactions have committed, according to the broker."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client
from penstock.errors import ExternalSystemError
from penstock.sinks.kafka_producers import (
    TransactionalProducer,
    committed_offset,
    connection_settings,
    forget,
)

__all__ = ["newest_batch"]

_LOADING_TIMEOUT_S: Final = 30.0
_LOADING_POLL_S: Final = 0.1
# A transaction that a killed worker has left open may hide the offset until the broker ends it.
_OPEN_TIMEOUT_S: Final = 2.0


def newest_batch(binding: KafkaBinding, prefix: str) -> int:
    """Return the newest micro-batch in any of the groups named with a prefix and a number; -1 if none.

    The broker lists the groups, so those of sink partitions from before the job was rescaled count too. Raises
    ExternalSystemError when the broker does not answer.
    """
    groups = [group for group in _groups(binding) if _is_numbered(group, prefix)]
    return max((_done(binding, group) for group in groups), default=-1)


def _is_numbered(group: str, prefix: str) -> bool:
    return group.startswith(prefix) and group.removeprefix(prefix).isdecimal()


def _groups(binding: KafkaBinding) -> list[str]:
    """Return the consumer groups that the brokers know."""
    errors = LastError()
    client = build_client(AdminClient, binding, connection_settings(binding), errors)
    deadline_s = time.monotonic() + _LOADING_TIMEOUT_S
    while True:
        try:
            found = client.list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S).result()
            failed = [error.args[0] if isinstance(error, KafkaException) else error for error in found.errors]
        except KafkaException as e:
            failed = [e.args[0]]
        if not failed:
            return [group.group_id for group in found.valid]
        # A broker that has just started does not know its groups yet.
        is_loading = failed[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        if not is_loading or time.monotonic() >= deadline_s:
            raise ExternalSystemError(
                f"Sink {binding.stream!r}: {binding.servers} does not report which micro-batches it holds "
                f"({errors.after(failed[0])}). An exactly-once sink must be able to list its consumer groups "
                "(those that begin with penstock-)."
            )
        time.sleep(_LOADING_POLL_S)


def _done(binding: KafkaBinding, group: str) -> int:
    """Return the newest micro-batch in one group."""
    own = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    settings = connection_settings(binding) | own | {"enable.sparse.connections": False}
    consumer = build_client(Consumer, binding, settings, LastError())
    try:
        next_batch, _ = committed_offset(consumer, binding.topic, _OPEN_TIMEOUT_S)
        return next_batch - 1
    except KafkaException:
        # A producer of that name ends an open transaction, and knows its outcome.
        producer = TransactionalProducer(binding, group)
        done = producer.done
        forget(producer)
        return done
    finally:
        consumer.close()
