"""Watermark strategies: derive the watermark of a stream from the event times of its records."""

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
    """A custom watermark generator for one source partition. Derive your own from it.

    In each micro-batch a new instance sees the records that one task reads from a partition, in order. The largest
    watermark that any of them returned counts across micro-batches. Both methods return a watermark in milliseconds
    since 1970, or None. An exception that they raise ends the job.

    >>> class UpToMarkers(WatermarkGenerator):
    ...     def on_record(self, record, time_ms):
    ...         return time_ms if record.is_marker else None
    """

    def on_record(self, record: Any, time_ms: int) -> int | None:  # noqa: ARG002  # for subclasses
        """Return the watermark that a record with this event time carries, or None (punctuated watermarks)."""
        return None

    def on_batch(self) -> int | None:
        """Return the watermark after all records seen so far, or None (periodic watermarks)."""
        return None


@dataclass(frozen=True)
class Watermarks:
    """A watermark strategy: derives the watermark of a stream from its event times. Create one by a class method.

    >>> Watermarks.bounded("5s").with_idleness("1m").idle_ms
    60000

    In a Kafka topic each partition has its own watermark, and the smallest one counts. Any other source is one
    partition.
    """

    bound_ms: int | None = None
    generator: Callable[[], WatermarkGenerator] | None = None
    idle_ms: int | None = None
    max_ahead_ms: int | None = None

    @classmethod
    def bounded(cls, out_of_orderness: Duration) -> Watermarks:
        """Allow records to be at most this far behind the newest of their partition; any further ones are late."""
        return cls(bound_ms=milliseconds(out_of_orderness, "The bound of Watermarks.bounded"))

    @classmethod
    def monotonous(cls) -> Watermarks:
        """Assume that the event times of a partition never decrease."""
        return cls(bound_ms=0)

    @classmethod
    def none(cls) -> Watermarks:
        """Emit no watermarks: event time stands still until the bounded input ends or the job is drained."""
        return cls()

    @classmethod
    def custom(cls, generator: Callable[[], WatermarkGenerator]) -> Watermarks:
        """Use your own watermark generator. `generator` is its class, or a function that creates it."""
        if not callable(generator):
            raise JobDefinitionError(
                f"Watermarks.custom takes a WatermarkGenerator class, or a function that makes one, not {generator!r}."
            )
        return cls(generator=generator)

    def with_idleness(self, timeout: Duration) -> Watermarks:
        """Stop a partition from holding back the watermark once it has had no records for this long, by the clock."""
        return dataclasses.replace(
            self, idle_ms=milliseconds(timeout, "The timeout of with_idleness", min_ms=1)
        )

    def with_max_ahead(self, bound: Duration) -> Watermarks:
        """Send a record whose event time is further ahead of the clock to the dead letters; it moves no watermark."""
        return dataclasses.replace(self, max_ahead_ms=milliseconds(bound, "The bound of with_max_ahead"))

    def tracker(self) -> WatermarkTracker | None:
        """Return a tracker for the records that a task reads from a partition; None without watermarks."""
        if self.bound_ms is None and self.generator is None:
            return None
        return WatermarkTracker(self.bound_ms, None if self.generator is None else self.generator())


class WatermarkTracker:
    """The watermark after the records that one task reads from a partition in one micro-batch."""

    def __init__(self, bound_ms: int | None, generator: WatermarkGenerator | None) -> None:
        self._bound_ms: Final = bound_ms
        self._generator: Final = generator
        self._largest: int | None = None

    def see(self, times_ms: npt.NDArray[np.int64], records: Callable[[], list[Any]]) -> None:
        """Advance the watermark by the next records; `records` creates their objects."""
        if self._bound_ms is not None:
            # As in Flink, a record at the newest time itself may still come.
            self._advance(int(times_ms.max()) - self._bound_ms - 1)
        if self._generator is not None:
            for record, at in zip(records(), times_ms.tolist(), strict=True):
                self._advance(self._generator.on_record(record, at))

    def watermark_ms(self) -> int | None:
        """Return the watermark after all of them, in milliseconds since 1970. Called once."""
        if self._generator is not None:
            self._advance(self._generator.on_batch())
        return self._largest

    def _advance(self, at: int | None) -> None:
        if at is not None and (self._largest is None or at > self._largest):
            self._largest = at
