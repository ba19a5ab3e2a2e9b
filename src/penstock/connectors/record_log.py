"""Record logs: custom sources that can be read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from penstock.connectors.given_record import GivenRecord

__all__ = ["RecordLog"]


class RecordLog(ABC):
    """A source that can be read again: partitions whose records have positions, whole numbers that ascend.

    Derive from it, and bind a stream to `python:module:Class?option=value`. The arguments of the class are the options,
    as text, or converted if they are annotated with `int`, `float`, `bool`, `Path` or `Literal`. The job commits
    positions with its state, and reads the same again after a crash: each record counts once.

    The process that plans has an object, and each task has its own. So an object holds no more than it needs to read.

    >>> class Days(RecordLog):
    ...     def __init__(self, days: int) -> None:
    ...         self.days = days
    ...     def ends(self):
    ...         return {"2026": self.days}
    ...     def read(self, partition, start, end):
    ...         for day in range(start, end):
    ...             yield day, {"year": int(partition), "day": day}
    >>> list(Days(3).read("2026", 1, 3))
    [(1, {'year': 2026, 'day': 1}), (2, {'year': 2026, 'day': 2})]
    """

    @abstractmethod
    def ends(self) -> Mapping[str, int]:
        """Return all partitions, each with the position after its last record.

        An end never goes back, and no record comes before it later. New partitions may appear. Called often, at most
        ten times a second.
        """

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterable[tuple[int, GivenRecord]]:
        """Return the records of a partition from position `start` to before `end`, each with its position.

        Positions ascend, and some may have no record. A worker may ask for any two positions up to the end, also again
        after a crash, and gets the same records. Raise an error if they are gone. A record is bytes or text in the
        format of the stream (JSON by default), or a mapping from fields to values.
        """

    def begins(self) -> Mapping[str, int]:
        """Return the first positions of partitions that do not begin at 0. Called at a checkpoint's first start."""
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Close what the object has opened."""
