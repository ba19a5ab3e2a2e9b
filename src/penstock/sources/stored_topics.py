"""Stored topics: the file of a stream with the topics that a checkpoint has read, by id, and where each begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.durable import sync_folder, write_atomically
from penstock.errors import CheckpointError
from penstock.sources.partition_names import PartitionNames

__all__ = ["TOPIC_FILES", "StoredTopic", "StoredTopics", "topic_file"]

TOPIC_FILES: Final = "*.topic"
"""The files, next to the lists and journals of other sources, that say which topics a checkpoint has read."""


class StoredTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic: its id, empty where the brokers report none, and the first offset to read by partition.

    A topic that was found later has no `begins`: they are in the first plan that has it. If it `is_gone`, it was
    deleted, and the stream continues without it.
    """

    id: str
    begins: dict[str, int] = {}
    is_gone: bool = False


class _File(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the file: the topic whose partitions are named by number, and the others."""

    topic: str
    id: str
    begins: dict[str, int] = {}
    is_gone: bool = False
    others: dict[str, StoredTopic] = {}


@dataclass(frozen=True)
class StoredTopics:
    """The topics that a stream has read; the partitions of the one `alone` are named by number only."""

    alone: str = ""
    topics: dict[str, StoredTopic] = field(default_factory=dict)

    @property
    def names(self) -> PartitionNames:
        """The names of the partitions."""
        return PartitionNames(self.alone)

    @property
    def begins(self) -> dict[str, int]:
        """Where the first micro-batch of the checkpoint begins to read, by the names of partitions."""
        return self.names.by_name({name: topic.begins for name, topic in self.topics.items()})

    def having(self, topics: dict[str, StoredTopic]) -> StoredTopics:
        """Return these topics with others added; the others replace topics of the same name."""
        return StoredTopics(self.alone, {**self.topics, **topics})

    @classmethod
    def read(cls, path: Path) -> StoredTopics | None:
        """Return the content of a file, None without it. Raises CheckpointError when it is damaged."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as e:
            raise CheckpointError(
                f"The checkpoint is damaged: {path} cannot be read ({e}). Restore the file from a copy of the "
                "checkpoint, or, if the stream has only ever been bound to one topic, delete it if you know that the "
                "topic was not recreated."
            ) from e
        topics = dict(found.others)
        if found.topic:
            topics[found.topic] = StoredTopic(found.id, found.begins, found.is_gone)
        return cls(found.topic, topics)

    def write(self, path: Path) -> None:
        """Write the file durably."""
        others = {name: topic for name, topic in sorted(self.topics.items()) if name != self.alone}
        one = self.topics.get(self.alone, StoredTopic(""))
        found = _File(self.alone, one.id, one.begins, one.is_gone, others)
        write_atomically(path, msgspec.json.encode(found))
        sync_folder(path.parent)


def topic_file(folder: Path, stream: str) -> Path:
    """Return the file of a stream."""
    return folder / f"{stream}.topic"
