"""Watermark strategies: how far the event time of a stream is claimed to be, told from its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.durations import Duration, milliseconds
from penstock.errors import JobDefinitionError

__all__ = ["WatermarkGenerator", "WatermarkTracker", "Watermarks"]


class WatermarkGenerator:
    """Tells watermarks from the records of one source partition, in code of your own.

    A fresh copy sees the records that one task reads of a partition in one micro-batch, in order; what counts across
    micro-batches is the largest watermark that it has told. Both methods give a watermark in milliseconds since 1970,
    or None. What they raise ends the job.

    >>> class UpToMarkers(WatermarkGenerator):
    ...     def on_record(self, record, time_ms):
    ...         return time_ms if record.is_marker else None
    """

    def on_record(self, record: Any, time_ms: int) -> int | None:  # noqa: ARG002  # for subclasses
        """The watermark that a record with this event time carries, if it does (punctuated watermarks)."""
        return None

    def on_batch(self) -> int | None:
        """The watermark behind all records that it has seen (periodic watermarks)."""
        return None


@dataclass(frozen=True)
class Watermarks:
    """How the watermark of a stream follows from the event times of its records. Made by its class methods.

    >>> Watermarks.bounded("5s").with_idleness("1m").idle_ms
    60000

    In a topic of Kafka each partition has its own, and the smallest counts; any other source is one partition.
    """

    bound_ms: int | None = None
    generator: Callable[[], WatermarkGenerator] | None = None
    idle_ms: int | None = None
    max_ahead_ms: int | None = None

    @classmethod
    def bounded(cls, out_of_orderness: Duration) -> Watermarks:
        """Records are at most so far behind the newest of their partition; those beyond are late."""
        return cls(bound_ms=milliseconds(out_of_orderness, "The bound of Watermarks.bounded"))

    @classmethod
    def monotonous(cls) -> Watermarks:
        """The event times of a partition never go back."""
        return cls(bound_ms=0)

    @classmethod
    def none(cls) -> Watermarks:
        """There are no watermarks: event time stands still until the bounded input ends, or the job is drained."""
        return cls()

    @classmethod
    def custom(cls, generator: Callable[[], WatermarkGenerator]) -> Watermarks:
        """Watermarks are told by a generator of your own, which `generator` makes: its class, or a function."""
        if not callable(generator):
            raise JobDefinitionError(
                f"Watermarks.custom takes what makes a WatermarkGenerator, such as its class, not {generator!r}."
            )
        return cls(generator=generator)

    def with_idleness(self, timeout: Duration) -> Watermarks:
        """A partition from which nothing has come for so long, by the clock, holds time back no more."""
        return dataclasses.replace(
            self, idle_ms=milliseconds(timeout, "The timeout of with_idleness", least_ms=1)
        )

    def with_max_ahead(self, bound: Duration) -> Watermarks:
        """A record whose event time is further ahead of the clock goes to the dead letters, and moves no watermark."""
        return dataclasses.replace(self, max_ahead_ms=milliseconds(bound, "The bound of with_max_ahead"))

    def tracker(self) -> WatermarkTracker | None:
        """What tells the watermark behind the records that a task reads of a partition; None when there is none."""
        if self.bound_ms is None and self.generator is None:
            return None
        return WatermarkTracker(self.bound_ms, None if self.generator is None else self.generator())


class WatermarkTracker:
    """Tells the watermark behind the records that one task reads of a partition in one micro-batch."""

    def __init__(self, bound_ms: int | None, generator: WatermarkGenerator | None) -> None:
        self._bound_ms: Final = bound_ms
        self._generator: Final = generator
        self._told: int | None = None

    def see(self, times_ms: npt.NDArray[np.int64], records: Callable[[], list[Any]]) -> None:
        """Take note of the next records; `records` makes the objects."""
        if self._bound_ms is not None:
            # As in Flink a record at the newest time itself may still come.
            self._tell(int(times_ms.max()) - self._bound_ms - 1)
        if self._generator is not None:
            for record, at in zip(records(), times_ms.tolist(), strict=True):
                self._tell(self._generator.on_record(record, at))

    def watermark_ms(self) -> int | None:
        """The watermark behind all of them, in milliseconds since 1970. Asked once."""
        if self._generator is not None:
            self._tell(self._generator.on_batch())
        return self._told

    def _tell(self, at: int | None) -> None:
        if at is not None and (self._told is None or at > self._told):
            self._told = at
