"""Topic identity: whether a Kafka topic is still the one that a checkpoint has read.

A topic that is deleted and recreated has its old name but other records. Its id, which brokers assign once and never
again, tells the two apart; the offsets of a checkpoint are valid only in the topic with that id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]  # re-exported without saying so

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client, find_topics
from penstock.brokers.topic_offsets import find_begins, find_ends
from penstock.errors import CheckpointError, ExternalSystemError, PenstockError, PlaceMissingError
from penstock.sources.partition_names import PartitionNames
from penstock.sources.stored_topics import StoredTopic, StoredTopics, topic_file

__all__ = ["KnownTopics", "TopicIdentity", "keep_found", "keep_gone", "topic_deleted"]

# The time limit of a check of topics while the job runs; the next micro-batch checks again.
_LOOK_S: Final = 2.0
_NO_ID: Final = str(Uuid(0, 0))
_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001  # librdkafka's own codes begin so


@dataclass(frozen=True)
class KnownTopics:
    """The topics of a stream: their file, how their partitions are named, and where the checkpoint begins to read."""

    path: Path
    names: PartitionNames
    begins: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Watched:
    admin: AdminClient
    binding: KafkaBinding
    path: Path
    ids: Mapping[str, str]

    @property
    def ids_now(self) -> Mapping[str, str]:
        """The ids of the topics that may have been read; with a pattern, topics are found while the job runs."""
        if self.binding.pattern is None:
            return self.ids
        stored = StoredTopics.read(self.path) or StoredTopics()
        return {name: topic.id for name, topic in stored.topics.items() if topic.id and not topic.is_gone}


class TopicIdentity:
    """The topics that a job reads, identified by their ids in a folder of its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._admins: dict[tuple[str, tuple[tuple[str, str], ...]], AdminClient] = {}
        self._watched: list[_Watched] = []
        self.known: dict[str, KnownTopics] = {}
        """The known topics of each stream."""

    def begin(
        self,
        binding: KafkaBinding,
        settings: Mapping[str, str],
        read_to: Mapping[str, Mapping[str, int]] | None,
    ) -> list[str]:
        """Check the topics of a stream before the job reads them, and keep their ids and begins durably.

        `settings` are librdkafka's, and `read_to` the next offsets by topic and partition, None when nothing was read
        yet. Returns sentences for the user: when the brokers cannot tell whether a topic is the same, when one was
        deleted and the binding says to continue, and when no topic matches a pattern.

        Raises CheckpointError when a topic is not the one that was read, or has fewer records than were read;
        PlaceMissingError when one that was read is gone; ExternalSystemError when no broker answers.
        """
        admin = self._admin(binding, settings)
        path = topic_file(self._folder, binding.stream)
        stored = None if read_to is None else StoredTopics.read(path)
        read = read_to or {}
        _check_bound(binding, read)
        if stored is None and read_to is not None and binding.pattern is not None:
            raise _file_missing(binding, path)
        there = _describe_all(admin, binding, {*_matching(admin, binding), *read})
        gone = [topic for topic in sorted(read) if topic not in there]
        if gone and binding.missing != "skip":
            raise topic_deleted(binding, gone[0])
        for topic, offsets in read.items():
            if topic in there:
                _check_same(binding, topic, stored, _id_of(there[topic]))
                _check_ends(admin, binding, there[topic], topic, offsets)
        found = _first(admin, binding, there) if stored is None else _renewed(stored, there, read)
        if found != stored:
            found.write(path)
        self.known[binding.stream] = KnownTopics(path, found.names, found.begins)
        ids = {topic: _id_of(about) for topic, about in there.items()}
        if binding.pattern is not None or all(ids.values()):
            self._watched.append(_Watched(admin, binding, path, ids))
        return _notes(binding, ids, gone)

    def check(self) -> None:
        """Check that the topics are still the same, after their records were read and before any is committed.

        An id never comes back, so everything read so far is from the topic that was known before. When no broker
        answers, the check at the end of the next micro-batch decides. Raises CheckpointError when a topic has changed,
        and ExternalSystemError when it is gone, unless the stream continues without it.
        """
        ids = [watched.ids_now for watched in self._watched]
        asked = [
            watched.admin.describe_topics(TopicCollection(list(known)), request_timeout=_LOOK_S)
            if known
            else {}
            for watched, known in zip(self._watched, ids, strict=True)
        ]
        for watched, known, answers in zip(self._watched, ids, asked, strict=True):
            for topic, before in known.items():
                _check_now(watched.binding, topic, before, answers[topic])
            # Errors of the client, such as a refused login, are only reported while it is polled.
            watched.admin.poll(0)

    def _admin(self, binding: KafkaBinding, settings: Mapping[str, str]) -> AdminClient:
        key = binding.servers, tuple(sorted(settings.items()))
        if key not in self._admins:
            self._admins[key] = build_client(AdminClient, binding, settings, LastError())
        return self._admins[key]


def keep_found(admin: AdminClient, binding: KafkaBinding, path: Path, topics: Iterable[str]) -> set[str]:
    """Keep the ids of topics that were found while the job runs, durably, before any plan has them.

    Returns the topics whose ids are known; brokers may not know a new one yet. Raises CheckpointError when a topic had
    been deleted before, and ExternalSystemError when no broker answers.
    """
    stored = StoredTopics.read(path) or StoredTopics()
    there = _describe_all(admin, binding, topics)
    for topic in there:
        known = stored.topics.get(topic)
        if known is not None and known.is_gone:
            raise _recreated(binding, topic, known.id, _id_of(there[topic]))
    # A topic that is known but in no position was in a plan that was lost.
    found = stored.having({topic: StoredTopic(_id_of(about)) for topic, about in there.items()})
    if found != stored:
        found.write(path)
    return set(there)


def keep_gone(path: Path, topics: Iterable[str]) -> None:
    """Keep durably that topics were deleted, before the plan that ends them: a new topic of the name is another one."""
    stored = StoredTopics.read(path) or StoredTopics()
    gone = {
        topic: msgspec.structs.replace(stored.topics.get(topic, StoredTopic("")), is_gone=True)
        for topic in topics
    }
    if (found := stored.having(gone)) != stored:
        found.write(path)


def _matching(admin: AdminClient, binding: KafkaBinding) -> Iterable[str]:
    """Return the topics that a binding reads, as far as they exist if it has a pattern."""
    if binding.pattern is None:
        return [binding.topic]
    return find_topics(admin, binding, LastError(), ANSWER_TIMEOUT_S)


def _describe_all(
    admin: AdminClient, binding: KafkaBinding, topics: Iterable[str]
) -> dict[str, TopicDescription]:
    """Return the brokers' descriptions of topics, without those that are gone. The topic of a binding must exist."""
    names = sorted(topics)
    found: dict[str, TopicDescription] = {}
    if not names:
        return found
    try:
        answers = admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_TIMEOUT_S)
        for topic in names:
            try:
                found[topic] = answers[topic].result(ANSWER_TIMEOUT_S + 1)
            except KafkaException as e:
                if topic == binding.topic or e.args[0].code() not in _NO_TOPIC:
                    raise
    except (KafkaException, TimeoutError) as e:
        raise _unanswered(binding, e) from e
    return found


def _first(admin: AdminClient, binding: KafkaBinding, there: Mapping[str, TopicDescription]) -> StoredTopics:
    """Return the topics of a stream of which nothing was read, each with where it begins."""
    topics = {
        topic: StoredTopic(_id_of(about), _begins(admin, binding, topic, about))
        for topic, about in there.items()
        if binding.reads(topic)
    }
    return StoredTopics("" if binding.pattern is not None else binding.topic, topics)


def _renewed(
    stored: StoredTopics, there: Mapping[str, TopicDescription], read: Iterable[str]
) -> StoredTopics:
    """Return the stored topics, with ids that brokers did not tell before."""
    more = {}
    for topic in read:
        known = stored.topics.get(topic, StoredTopic(""))
        if topic in there:
            more[topic] = StoredTopic(known.id or _id_of(there[topic]), known.begins)
    return stored.having(more)


def _begins(admin: AdminClient, binding: KafkaBinding, topic: str, found: TopicDescription) -> dict[str, int]:
    """The offsets at which the binding says to begin, as they are now."""
    find = find_begins if binding.start == "earliest" else find_ends
    offsets = find(admin, binding, [(topic, partition.id) for partition in found.partitions])
    return {str(number): offsets[topic, number] for _, number in sorted(offsets)}


def _id_of(found: TopicDescription) -> str:
    told = str(found.topic_id) if found.topic_id is not None else _NO_ID
    # As Kafka's own tools write it.
    return "" if told == _NO_ID else told.replace("+", "-").replace("/", "_")


def _check_bound(binding: KafkaBinding, read: Iterable[str]) -> None:
    """Raise CheckpointError when the job has read a topic that its binding does not name."""
    for topic in sorted(read):
        if not binding.reads(topic):
            names = "name" if binding.pattern is not None else "names"
            again = "Bind the stream to a pattern that matches all that it has read"
            if binding.pattern is None and len(list(read)) == 1:
                again = "Name the same topic again"
            raise CheckpointError(
                f"Stream {binding.stream!r}: the job has read the topic {topic!r}, but its binding {names} "
                f"{binding.place} on {binding.servers}. {again}. {_REMEDY}"
            )


def _check_same(binding: KafkaBinding, topic: str, stored: StoredTopics | None, now: str) -> None:
    """Raise CheckpointError when a topic is not the one that was read."""
    known = None if stored is None else stored.topics.get(topic)
    if known is not None and known.id and now and known.id != now:
        raise _recreated(binding, topic, known.id, now)


def _check_ends(
    admin: AdminClient,
    binding: KafkaBinding,
    found: TopicDescription,
    topic: str,
    read_to: Mapping[str, int],
) -> None:
    """Raise CheckpointError when a partition ends before the place up to which it was read."""
    there = {partition.id for partition in found.partitions}
    for partition, offset in read_to.items():
        if int(partition) not in there:
            raise _shrunk(binding, topic, f"no longer has partition {partition}", offset)
    ends = find_ends(admin, binding, sorted((topic, int(partition)) for partition in read_to))
    for (_, number), end in ends.items():
        if end < read_to[str(number)]:
            what = f"ends at offset {end} in partition {number}"
            raise _shrunk(binding, topic, what, read_to[str(number)])


def _check_now(binding: KafkaBinding, topic: str, before: str, answer: Any) -> None:
    """Check the answer of brokers about a topic while the job runs."""
    try:
        now = _id_of(answer.result(_LOOK_S + 1))
    except KafkaException as e:
        # The next plan continues without it.
        goes_on = binding.pattern is not None and binding.missing == "skip"
        if e.args[0].code() in _NO_TOPIC and not goes_on:
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the topic {topic!r} on {binding.servers} disappeared "
                "while the job read it, and nothing of this micro-batch was committed. If it was deleted for "
                f"good, {_SKIP if binding.pattern is not None else ''}the job cannot continue from its offsets; "
                f"{_GO_ON}"
            ) from e
        return
    except TimeoutError:
        return
    if now and now != before:
        raise _recreated(binding, topic, before, now)


def _notes(binding: KafkaBinding, ids: Mapping[str, str], gone: Iterable[str]) -> list[str]:
    """Return sentences for the user about the topics of a stream."""
    notes = [
        f"Stream {binding.stream!r}: the topic {topic!r} on {binding.servers} was deleted, and the stream continues "
        "without it."
        for topic in gone
    ]
    if not ids:
        notes.append(
            f"Stream {binding.stream!r}: no topic on {binding.servers} matches its pattern yet. Those that appear are "
            "read from their beginning."
        )
    if without := [topic for topic, now in ids.items() if not now]:
        notes.append(
            f"The brokers {binding.servers} give topics no ids, as Kafka does since 2.8. If the topic "
            f"{without[0]!r} is deleted and recreated, the job notices it only while the new one has fewer records "
            "than were read."
        )
    return notes


def _unanswered(binding: KafkaBinding, error: Exception) -> ExternalSystemError:
    reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer"
    return ExternalSystemError(
        f"Stream {binding.stream!r}: the brokers {binding.servers} do not describe {binding.place} "
        f"({reason}). Start the job again when they answer, as a client that may describe the topic."
    )


_GO_ON: Final = (
    "to continue with the state of the job, take a savepoint of the checkpoint (penstock savepoint), and start the "
    "job from it with a new checkpoint, --from-savepoint and --no-positions, so that all its streams are read from "
    "where their bindings say (start=earliest: from the beginning). Without that state, start it with a new checkpoint."
)
_REMEDY: Final = (
    f"The offsets of the checkpoint are not valid there, and nothing of it was processed; {_GO_ON}"
)
_SKIP: Final = "add missing=skip to the URI, and the job continues without it. Otherwise "


def topic_deleted(binding: KafkaBinding, topic: str) -> PenstockError:
    """Return the error for a topic that the job has read, and that is gone."""
    return PlaceMissingError(
        f"Stream {binding.stream!r}: the job has read the topic {topic!r}, which no longer exists on "
        f"{binding.servers}. To continue without it, with a dead letter for each of its partitions, add missing=skip "
        "to the URI and start the job again."
    )


def _recreated(binding: KafkaBinding, topic: str, before: str, now: str) -> CheckpointError:
    ids = f" The job has read the one with the id {before}, and this one has the id {now}." if before else ""
    return CheckpointError(
        f"Stream {binding.stream!r}: the topic {topic!r} on {binding.servers} was deleted and recreated.{ids} {_REMEDY}"
    )


def _shrunk(binding: KafkaBinding, topic: str, what: str, offset: int) -> CheckpointError:
    return CheckpointError(
        f"Stream {binding.stream!r}: the topic {topic!r} on {binding.servers} {what}, but the job has read up "
        f"to offset {offset} there. It was recreated, or its brokers have lost records. {_REMEDY}"
    )


def _file_missing(binding: KafkaBinding, path: Path) -> CheckpointError:
    return CheckpointError(
        f"Stream {binding.stream!r}: {path} is missing, which says how the partitions of its topics are named in the "
        "state. Restore the file from a copy of the checkpoint. If the stream was bound to one topic so far, run the "
        "job once with that binding, and then with the pattern."
    )
