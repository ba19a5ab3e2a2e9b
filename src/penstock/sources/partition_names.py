"""Partition names: how chunks, positions and stored event times name the partitions of a Kafka stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["PartitionNames"]


@dataclass(frozen=True)
class PartitionNames:
    """The names of the partitions that a stream reads. They sort in the order in which their records count.

    A partition is named by its topic and its number. Those of one topic, `alone`, have their number only: the topic of
    a binding that names one, also when a later binding of the stream has a pattern. Stored state has such names. The
    names of one topic sort as numbers.

    >>> names = PartitionNames("readings")
    >>> names.of("readings", 3), names.of("readings-2", 3)
    ('00003', 'readings-2-00003')
    >>> names.place("readings-2-00003")
    ('readings-2', 3)
    """

    alone: str = ""

    def of(self, topic: str, number: int) -> str:
        """Return the name of a partition."""
        return f"{number:05d}" if topic == self.alone else f"{topic}-{number:05d}"

    def place(self, name: str) -> tuple[str, int]:
        """Return the topic and the number of a partition."""
        topic, hyphen, number = name.rpartition("-")
        return topic if hyphen else self.alone, int(number)

    def topic(self, name: str) -> str:
        """Return the topic of a partition."""
        return self.place(name)[0]

    def all_of(self, counts: Mapping[str, int]) -> list[str]:
        """Return the names of all partitions of topics, in order; `counts` says how many each has."""
        return sorted(self.of(topic, number) for topic, count in counts.items() for number in range(count))

    def by_topic(self, offsets: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return offsets as checkpoints keep them, by topic and number."""
        found: dict[str, dict[str, int]] = {}
        for (topic, number), at in sorted((self.place(name), at) for name, at in offsets.items()):
            found.setdefault(topic, {})[str(number)] = at
        return found

    def by_name(self, offsets: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Return offsets of a checkpoint by the names of the partitions."""
        return {
            self.of(topic, int(number)): at
            for topic, found in offsets.items()
            for number, at in found.items()
        }

    def places(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Return the topics and numbers of partitions."""
        return [self.place(name) for name in names]
