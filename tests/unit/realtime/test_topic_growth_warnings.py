"""Topic growth: what is said of brokers that do not answer while engines follow their topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bindings.types import KafkaBinding
from penstock.realtime import topic_growth
from penstock.realtime.topic_growth import TopicGrowth
from penstock.sources import kafka_log
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics


def test_brokers_that_do_not_answer_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Now and then, not with each look."""
    monkeypatch.setattr(kafka_log, "_ANSWER_TIMEOUT_S", 0.1)
    binding = KafkaBinding("numbers", "kafka://127.0.0.1:1/t", "127.0.0.1:1", "t")
    growth = TopicGrowth(
        {"numbers": KafkaLog(binding, {}, KnownTopics(Path(), PartitionNames("t")))}, lambda: None
    )
    growth.follow({"numbers": ["00000"]})
    for warn_s, count in ((60.0, 1), (60.0, 1), (0.0, 2)):
        monkeypatch.setattr(topic_growth, "_WARN_S", warn_s)
        growth._look()
        said = [one.getMessage() for one in caplog.records if one.name == "penstock.sources"]
        assert len(said) == count
        assert not growth.has_changed
    assert said[0].startswith("Stream 'numbers': no Kafka broker answers at 127.0.0.1:1")
    assert said[0].endswith("The stream waits.")
