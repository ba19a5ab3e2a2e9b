"""A topic that was created is there when the job continues."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers import kafka_topics
from penstock.errors import PlaceMissingError


class Admin:
    """A client of brokers that know a new topic only when they are asked for it some times more."""

    def __init__(self, settings: Any) -> None:
        self._asked_since = -1

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        if self._asked_since >= 0:
            self._asked_since += 1
        known = self._asked_since > 3
        found = SimpleNamespace(
            error=None if known else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={0: None}
        )
        return SimpleNamespace(topics={topic: found} if topic else {})

    def create_topics(self, topics: list[Any], **more: float) -> dict[str, Future[None]]:
        self._asked_since = 0
        done: Future[None] = Future()
        done.set_result(None)
        return {topics[0].topic: done}


def binding(query: str) -> KafkaBinding:
    found = parse_binding("readings", f"kafka://broker:9092/readings{query}", "data")
    assert isinstance(found, KafkaBinding)
    return found


def test_a_new_topic_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that is asked may hear of it later than the one that has made it."""
    monkeypatch.setattr(kafka_topics, "AdminClient", Admin)
    assert kafka_topics.check_topic(binding("?create_topic=true"), {}) == 1


def test_a_topic_that_does_not_appear_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over, or at once where none was to be made."""
    monkeypatch.setattr(kafka_topics, "AdminClient", Admin)
    with pytest.raises(PlaceMissingError, match="'readings' does not exist"):
        kafka_topics.check_topic(binding("?create_topic=true"), {}, timeout_s=0)
    with pytest.raises(PlaceMissingError, match="'readings' does not exist"):
        kafka_topics.check_topic(binding(""), {})


class LateAdmin(Admin):
    """A client whose broker lists all topics, but has not heard yet who leads a new one."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._asked_since = 0

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        return super().list_topics(topic, timeout) if topic else SimpleNamespace(topics={"readings": None})


def test_a_topic_that_somebody_has_just_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is among the topics, so it is not missing."""
    monkeypatch.setattr(kafka_topics, "AdminClient", LateAdmin)
    assert kafka_topics.check_topic(binding(""), {}) == 1
