"""Topic identity: whether a Kafka topic is still the one that a checkpoint has read.

A topic that is deleted and recreated has its old name but other records. Its id, which brokers assign once and never
again, tells the two apart; the offsets of a checkpoint are valid only in the topic with that id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]

from penstock.base.durable import sync_folder, write_atomically
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import ANSWER_TIMEOUT_S, LastError, build_client
from penstock.brokers.topic_offsets import find_begins, find_ends
from penstock.errors import CheckpointError, ExternalSystemError

__all__ = ["TOPIC_FILES", "TopicIdentity"]

TOPIC_FILES: Final = "*.topic"
"""The files, next to the lists and journals of other sources, that say which topics a checkpoint has read."""

# How long a check of topics may take while the job runs; its next micro-batch checks again.
_LOOK_S: Final = 2.0
_NO_ID: Final = str(Uuid(0, 0))
_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001


class _Stored(msgspec.Struct, frozen=True):
    """The topic that a stream reads, and the first offset to read by partition.

    `id` is empty where the brokers report none.
    """

    topic: str
    id: str
    begins: dict[str, int] = {}


@dataclass(frozen=True)
class _Watched:
    admin: AdminClient
    binding: KafkaBinding
    id: str


class TopicIdentity:
    """The topics that a job reads, identified by their ids in a folder of its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._admins: dict[tuple[str, tuple[tuple[str, str], ...]], AdminClient] = {}
        self._watched: list[_Watched] = []
        self.begins: dict[str, dict[int, int]] = {}
        """Where the first micro-batch of the checkpoint begins to read, by stream and partition."""

    def begin(
        self, binding: KafkaBinding, settings: Mapping[str, str], read_to: Mapping[str, int] | None
    ) -> str | None:
        """Check the topic of a stream before the job reads it, and keep its id and where it begins durably.

        `settings` are librdkafka's, and `read_to` the next offsets by partition, None when nothing was read yet.
        Returns a warning when the brokers cannot tell whether the topic is the same.

        Raises CheckpointError when the topic is not the one that was read, or has fewer records than were read;
        ExternalSystemError when no broker answers.
        """
        admin = self._admin(binding, settings)
        found = _describe(admin, binding)
        now = _id_of(found)
        path = self._folder / f"{binding.stream}.topic"
        stored = self._read_stored(path) if read_to else None
        if stored is not None and (stored.topic != binding.topic or (stored.id and now and stored.id != now)):
            raise _changed(binding, stored, now)
        if read_to:
            _check_ends(admin, binding, found, read_to)
        if stored is None or (now and not stored.id):
            begins = _begins(admin, binding, found) if stored is None else stored.begins
            stored = _Stored(binding.topic, now, begins)
            write_atomically(path, msgspec.json.encode(stored))
            sync_folder(path.parent)
        self.begins[binding.stream] = {int(number): offset for number, offset in stored.begins.items()}
        if now:
            self._watched.append(_Watched(admin, binding, now))
            return None
        return (
            f"The brokers {binding.servers} give topics no ids, as Kafka does since 2.8. If the topic "
            f"{binding.topic!r} is deleted and recreated, the job notices it only while the new one has fewer records "
            "than were read."
        )

    def check(self) -> None:
        """Check that the topics are still the same, after their records were read and before any is committed.

        An id never comes back, so everything read so far is from the topic that was known before. When no broker
        answers, the check at the end of the next micro-batch decides. Raises CheckpointError when a topic has changed,
        and ExternalSystemError when it is gone.
        """
        asked = [
            watched.admin.describe_topics(TopicCollection([watched.binding.topic]), request_timeout=_LOOK_S)
            for watched in self._watched
        ]
        for watched, answers in zip(self._watched, asked, strict=True):
            binding = watched.binding
            try:
                now = _id_of(answers[binding.topic].result(_LOOK_S + 1))
            except KafkaException as e:
                if e.args[0].code() in _NO_TOPIC:
                    raise ExternalSystemError(
                        f"Stream {binding.stream!r}: the topic {binding.topic!r} on {binding.servers} disappeared "
                        "while the job read it, and nothing of this micro-batch was committed. If it was deleted for "
                        f"good, the job cannot continue from its offsets; {_GO_ON}"
                    ) from e
                continue
            except TimeoutError:
                continue
            if now and now != watched.id:
                raise _changed(binding, _Stored(binding.topic, watched.id), now)

    def _admin(self, binding: KafkaBinding, settings: Mapping[str, str]) -> AdminClient:
        key = binding.servers, tuple(sorted(settings.items()))
        if key not in self._admins:
            self._admins[key] = build_client(AdminClient, binding, settings, LastError())
        return self._admins[key]

    def _read_stored(self, path: Path) -> _Stored | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as e:
            raise CheckpointError(
                f"The checkpoint is damaged: {path} cannot be read ({e}). Restore the file from a copy of the "
                "checkpoint, or delete it if you know that the topic was not recreated."
            ) from e


def _describe(admin: AdminClient, binding: KafkaBinding) -> TopicDescription:
    collection = TopicCollection([binding.topic])
    try:
        answers = admin.describe_topics(collection, request_timeout=ANSWER_TIMEOUT_S)
        found: TopicDescription = answers[binding.topic].result(ANSWER_TIMEOUT_S + 1)
    except (KafkaException, TimeoutError) as e:
        raise _unanswered(binding, e) from e
    return found


def _begins(admin: AdminClient, binding: KafkaBinding, found: TopicDescription) -> dict[str, int]:
    """The offsets at which the binding says to begin, as they are now."""
    find = find_begins if binding.start == "earliest" else find_ends
    offsets = find(admin, binding, [partition.id for partition in found.partitions])
    return {str(number): offsets[number] for number in sorted(offsets)}


def _id_of(found: TopicDescription) -> str:
    told = str(found.topic_id) if found.topic_id is not None else _NO_ID
    # As Kafka's own tools write it.
    return "" if told == _NO_ID else told.replace("+", "-").replace("/", "_")


def _check_ends(
    admin: AdminClient, binding: KafkaBinding, found: TopicDescription, read_to: Mapping[str, int]
) -> None:
    """Raise CheckpointError when a partition ends before the place up to which it was read."""
    there = {partition.id for partition in found.partitions}
    for partition, offset in read_to.items():
        if int(partition) not in there:
            raise _shrunk(binding, f"no longer has partition {partition}", offset)
    ends = find_ends(admin, binding, sorted(map(int, read_to)))
    for number, end in ends.items():
        if end < read_to[str(number)]:
            what = f"ends at offset {end} in partition {number}"
            raise _shrunk(binding, what, read_to[str(number)])


def _unanswered(binding: KafkaBinding, error: Exception) -> ExternalSystemError:
    reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer"
    return ExternalSystemError(
        f"Stream {binding.stream!r}: the brokers {binding.servers} do not describe the topic {binding.topic!r} "
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


def _changed(binding: KafkaBinding, stored: _Stored, now: str) -> CheckpointError:
    topic = f"the topic {binding.topic!r} on {binding.servers}"
    if stored.topic != binding.topic:
        return CheckpointError(
            f"Stream {binding.stream!r}: the job has read the topic {stored.topic!r}, but its binding names {topic}. "
            f"Name the same topic again. {_REMEDY}"
        )
    return CheckpointError(
        f"Stream {binding.stream!r}: {topic} was deleted and recreated. The job has read the one with the id "
        f"{stored.id}, and this one has the id {now}. {_REMEDY}"
    )


def _shrunk(binding: KafkaBinding, what: str, offset: int) -> CheckpointError:
    return CheckpointError(
        f"Stream {binding.stream!r}: the topic {binding.topic!r} on {binding.servers} {what}, but the job has read up "
        f"to offset {offset} there. It was recreated, or its brokers have lost records. {_REMEDY}"
    )
