"""Partition owners: which task of a job in real time reads which partition of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["PartitionOwners"]


class PartitionOwners:
    """The owners of partitions, by stream.

    A partition keeps its task as long as it exists. New ones go, in the order of their names, to the tasks that have
    the fewest. So the partitions of one topic spread evenly over the tasks.

    >>> owners = PartitionOwners(2)
    >>> owners.assign("readings", ["00000", "00001", "00002"])
    {'00000': 0, '00001': 1, '00002': 0}
    >>> owners.assign("readings", ["00001", "00002", "00003", "00004"])
    {'00001': 1, '00002': 0, '00003': 0, '00004': 1}
    """

    def __init__(self, tasks: int) -> None:
        self._tasks: Final = tasks
        self._owners: Final[dict[str, dict[str, int]]] = {}

    def assign(self, stream: str, names: Iterable[str]) -> dict[str, int]:
        """Return the task of each present partition of a stream."""
        there = sorted(names)
        before = self._owners.get(stream, {})
        owners = {name: before[name] for name in there if name in before}
        counts = [0] * self._tasks
        for task in owners.values():
            counts[task] += 1
        for name in there:
            if name not in owners:
                owners[name] = counts.index(min(counts))
                counts[owners[name]] += 1
        self._owners[stream] = owners
        return {name: owners[name] for name in there}
