"""Topic patterns: which are refused, how new and deleted topics are planned, and how positions are stored."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.errors import BindingError, PlaceMissingError
from penstock.records.schemas import record_type
from penstock.sources import kafka_log
from penstock.sources.base import GONE, Split
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.stored_topics import StoredTopic, StoredTopics
from penstock.sources.topic_identity import KnownTopics


def bind(topic: str, role: Any = "data") -> KafkaBinding:
    found = parse_binding("numbers", f"kafka://h:1/{topic}", role)
    assert isinstance(found, KafkaBinding)
    return found


def log(topic: str, path: Path, alone: str = "") -> KafkaLog:
    return KafkaLog(bind(topic), {}, KnownTopics(path, PartitionNames(alone)))


@pytest.mark.parametrize(
    ("topic", "role", "why"),
    [
        ("~read[ings", "data", r"'read\[ings' is not a regular expression"),
        ("~", "control", "the regular expression after ~ is missing"),
        ("~a.*", "sink", "is a pattern, and a sink writes to one topic"),
        ("~a.*?create_topic=true", "data", "create_topic=true needs the name of a topic"),
    ],
)
def test_wrong_patterns_are_refused(topic: str, role: str, why: str) -> None:
    """The error says what is wrong, before anything starts."""
    with pytest.raises(BindingError, match=why):
        bind(topic, role)


def test_a_pattern_matches_whole_names_but_not_those_of_kafka() -> None:
    """Internal topics match only patterns that start like their names; an escaped ? is part of the pattern."""
    assert [name for name in ("a", "a-1", "ba", "__a") if bind("~.*").reads(name)] == ["a", "a-1", "ba"]
    assert [name for name in ("a", "ab", "abc") if bind("~ab%3F").reads(name)] == ["a", "ab"]
    assert bind("~__consumer.*").reads("__consumer_offsets")


def test_a_position_of_one_topic_goes_on_under_a_pattern(tmp_path: Path) -> None:
    """Partitions of the first topic keep their names; those of others are prefixed. The stored form is the
    same.
    """
    one, many = log("a", tmp_path, "a"), log("~.*", tmp_path, "a")
    stored = one.encode({"00000": 4, "00001": 5})
    assert many.decode(stored) == {"00000": 4, "00001": 5}
    both = many.encode({"00000": 4, "00001": 5, "b-00000": 6})
    assert both == {"a": {"0": 4, "1": 5}, "b": {"0": 6}}
    with pytest.raises(
        BindingError, match="the positions are of 'a', 'b', and the binding names the topic 'a'"
    ):
        one.decode(both)


def test_a_deleted_topic_ends_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic is an error by default. With missing=skip a split ends each partition, which replays
    repeat and positions keep.
    """
    path = tmp_path / "numbers.topic"
    StoredTopics("", {"a": StoredTopic("1"), "b": StoredTopic("2")}).write(path)
    monkeypatch.setattr(kafka_log, "count_partitions", lambda *_: None)
    monkeypatch.setattr(kafka_log, "find_begins", lambda *_: {})
    start = {"a-00000": 3, "b-00000": 4}

    def planned(topic: str) -> tuple[KafkaLog, dict[str, Any]]:
        one = log(topic, path)
        one._frozen = {"a-00000": 9}
        one._look = typing.cast("Any", types.SimpleNamespace(admin=None, errors=None, ever={"b-00000": 7}))
        return one, one.encode(one.latest(start, limited=False))

    with pytest.raises(PlaceMissingError, match=r"has read the topic 'b', .* add missing=skip"):
        planned("~.*")
    one, stored = planned("~.*?missing=skip")
    assert stored == {"a": {"0": 9}, "@first": {"b": {"0": 7}}}
    splits = one.splits(start, one.decode(stored), 1)
    assert splits == [Split("b-00000", GONE, 4, 7), Split("a-00000", "", 3, 9)]
    (chunk,) = one.read(splits[:1], record_type("n INT"))
    assert chunk.ends
    assert "The topic 'b' was deleted" in chunk.bad[0].reason
    assert "At least the offsets up to 6 are missing" in chunk.bad[0].reason
    found = StoredTopics.read(path)
    assert found is not None
    assert [name for name, topic in found.topics.items() if topic.is_gone] == ["b"]


def test_what_is_stored_of_one_topic_is_read_as_before(tmp_path: Path) -> None:
    """A single topic's position file keeps its original format."""
    path = tmp_path / "numbers.topic"
    path.write_bytes(b'{"topic":"a","id":"x","begins":{"0":3}}')
    found = StoredTopics.read(path)
    assert found is not None
    assert (found.alone, found.begins) == ("a", {"00000": 3})
    found.write(path)
    assert path.read_bytes() == b'{"topic":"a","id":"x","begins":{"0":3}}'
    found.having({"b": StoredTopic("y")}).write(path)
    again = StoredTopics.read(path)
    assert again is not None
    assert (again.alone, again.begins, set(again.topics)) == ("a", {"00000": 3}, {"a", "b"})
