"""Committed offsets of a group: the request is retried until the coordinator is available."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import ExternalSystemError
from penstock.machine.local_server import free_port
from penstock.sinks import kafka_producers
from penstock.sinks.kafka_producers import TransactionalProducer, committed_offset


class Consumer:
    """A consumer whose broker returns some errors before it answers."""

    def __init__(self, *errors: int, offset: int = 7) -> None:
        self._errors = list(errors)
        self._offset = offset

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop(0)))
        return [TopicPartition(partitions[0].topic, 0, self._offset)]


def asked(*errors: int, timeout_s: float = 30, offset: int = 7) -> int:
    consumer: Any = Consumer(*errors, offset=offset)
    return committed_offset(consumer, "heaters", timeout_s)[0]


def test_a_coordinator_that_moves_is_asked_again() -> None:
    """A broker that has just started or created its offsets topic does so."""
    assert asked(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS) == 7


def test_a_group_without_an_offset_has_0() -> None:
    """The broker may report this by an error or a negative offset."""
    assert asked(KafkaError.GROUP_ID_NOT_FOUND) == 0
    assert asked(offset=-1001) == 0


@pytest.mark.parametrize(
    ("error", "timeout_s"), [(KafkaError.NOT_COORDINATOR, 0), (KafkaError.GROUP_AUTHORIZATION_FAILED, 30)]
)
def test_what_does_not_pass_is_raised(error: int, timeout_s: float) -> None:
    """The error is raised after the timeout, or at once where it is permanent."""
    with pytest.raises(KafkaException):
        asked(error, timeout_s=timeout_s)


def test_a_broker_that_is_away_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, rather than naming problems of a reachable broker."""
    monkeypatch.setattr(kafka_producers, "_ANSWER_TIMEOUT_S", 0.2)
    uri = f"kafka://127.0.0.1:{free_port()}/heaters?delivery=exactly-once"
    binding = parse_binding("heaters", uri, "sink")
    assert isinstance(binding, KafkaBinding)
    with pytest.raises(
        ExternalSystemError, match="If the broker is away, start the job again when it is back"
    ):
        TransactionalProducer(binding, "heaters-0")
