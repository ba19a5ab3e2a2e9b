"""A topic that was just created is known to the brokers by the time the job continues."""

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
    """An admin client whose brokers list a new topic only after several requests."""

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
    """The queried broker may learn of it later than the one that created it."""
    monkeypatch.setattr(kafka_topics, "AdminClient", Admin)
    assert kafka_topics.check_topic(binding("?create_topic=true"), {}) == 1


def test_a_topic_that_does_not_appear_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes after the timeout, or at once where no topic was to be created."""
    monkeypatch.setattr(kafka_topics, "AdminClient", Admin)
    with pytest.raises(PlaceMissingError, match="'readings' does not exist"):
        kafka_topics.check_topic(binding("?create_topic=true"), {}, timeout_s=0)
    with pytest.raises(PlaceMissingError, match="'readings' does not exist"):
        kafka_topics.check_topic(binding(""), {})


class LateAdmin(Admin):
    """An admin client whose broker lists a new topic before it knows its leader."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._asked_since = 0

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        return super().list_topics(topic, timeout) if topic else SimpleNamespace(topics={"readings": None})


def test_a_topic_that_somebody_has_just_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is listed, so it is not missing."""
    monkeypatch.setattr(kafka_topics, "AdminClient", LateAdmin)
    assert kafka_topics.check_topic(binding(""), {}) == 1
