"""Watermarks: what a slot knows of the progress of event time, put together from the ticks of its inputs.

A tick says how far the partitions of a stream claim to be. The watermark of a slot is the minimum over the partitions
that are not idle, and never goes back (Akidau et al., "The Dataflow Model", VLDB 2015).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

__all__ = ["END_MS", "INGESTION_TIME", "EventClock", "Pace", "Progress", "Tick", "merged_progress"]

INGESTION_TIME: Final = "__ingestion_time"
"""As the field of event time: a record counts when it arrives, at the time of its micro-batch."""

END_MS: Final = 2**63 - 1
"""The watermark behind all records."""

_BEFORE_ALL: Final = -(2**63)


class Tick(msgspec.Struct, array_like=True, frozen=True):
    """How far partitions of a stream, or slots of a step, are: the watermark of each, in milliseconds since 1970.

    `origin` is the id of the source or step. With `ends` time ends for this micro-batch: all that is open is done.
    """

    origin: str
    watermarks: dict[str, int]
    ends: bool = False


@dataclass(frozen=True)
class Pace:
    """How the partitions of one origin count: those that are known beforehand, and after what silence one is idle.

    `grows` tells that others may come. With `by_arrival` the time of records is that of the micro-batch.
    """

    origin: str
    partitions: tuple[str, ...]
    idle_ms: int | None = None
    grows: bool = False
    by_arrival: bool = False


class Progress(msgspec.Struct):
    """What a slot keeps of its inputs.

    `partitions` has, by origin and partition, the watermark, None before the first, and the time of the micro-batch
    that brought something last. `watermark_ms` is the slot's own, None before the first.
    """

    partitions: dict[str, dict[str, tuple[int | None, int]]] = {}
    watermark_ms: int | None = None


class EventClock:
    """The event time of a slot in one micro-batch. `progress` is what was kept; that of afterwards is here.

    `before_ms` is the watermark while the records of the micro-batch are processed, `after_ms` the one behind them.
    With `stands` it is the same: the step is paused, and its inputs go on without it. `ends` tells that time ends.
    """

    def __init__(
        self,
        paces: Sequence[Pace],
        progress: Progress,
        ticks: Iterable[Tick],
        now_ms: int,
        *,
        stands: bool = False,
    ) -> None:
        self._paces: Final = paces
        self._now_ms: Final = now_ms
        partitions: dict[str, dict[str, tuple[int | None, int]]] = {}
        for pace in paces:
            known = progress.partitions.get(pace.origin, {})
            names = dict.fromkeys([*pace.partitions, *(known if pace.grows else ())])
            partitions[pace.origin] = {name: known.get(name, (None, now_ms)) for name in names}
        ends = False
        for tick in ticks:
            ends = ends or tick.ends
            known = partitions.get(tick.origin, {})
            for name, watermark_ms in tick.watermarks.items():
                before_ms = known.get(name, (None, 0))[0]
                known[name] = watermark_ms if before_ms is None else max(before_ms, watermark_ms), now_ms
        least_ms = None if stands else self._least(partitions)
        self.progress: Final = Progress(partitions, _later(progress.watermark_ms, least_ms))
        self.before_ms: Final = progress.watermark_ms
        self.ends: Final = ends and not stands
        self.after_ms: Final = END_MS if self.ends else self.progress.watermark_ms

    def _is_idle(self, pace: Pace, moved_ms: int) -> bool:
        return pace.idle_ms is not None and self._now_ms - moved_ms >= pace.idle_ms

    def _least(self, partitions: dict[str, dict[str, tuple[int | None, int]]]) -> int | None:
        """The watermark of those that are not idle; when all are, nobody holds anything back."""
        working: list[int | None] = []
        idle: list[int] = []
        for pace in self._paces:
            if pace.by_arrival:
                working.append(self._now_ms - 1)
            for watermark_ms, moved_ms in partitions[pace.origin].values():
                if not self._is_idle(pace, moved_ms):
                    working.append(watermark_ms)
                elif watermark_ms is not None:
                    idle.append(watermark_ms)
        if not working:
            return max(idle, default=None)
        return None if None in working else min(at for at in working if at is not None)

    @property
    def moved(self) -> bool:
        """Whether time has moved."""
        return self.after_ms != self.before_ms

    @property
    def next_idle_ms(self) -> int | None:
        """When the next partition falls idle, in milliseconds since 1970; None when none will."""
        found = [
            moved_ms + pace.idle_ms
            for pace in self._paces
            if pace.idle_ms is not None
            for _, moved_ms in self.progress.partitions[pace.origin].values()
        ]
        return min((at for at in found if at > self._now_ms), default=None)

    @property
    def held_by(self) -> tuple[str, str] | None:
        """The origin and the partition that hold time, for people; None when none does."""
        found = [
            (_BEFORE_ALL if watermark_ms is None else watermark_ms, pace.origin, name)
            for pace in self._paces
            for name, (watermark_ms, moved_ms) in self.progress.partitions[pace.origin].items()
            if not self._is_idle(pace, moved_ms)
        ]
        return min(found)[1:] if found else None


def merged_progress(found: Sequence[Progress | None]) -> Progress | None:
    """What the slots of a step know of time, as one, for slots that divide the keys otherwise.

    What came from other steps is left out, whose slots are others then as well; the watermark stands until these tell.
    """
    known = [progress for progress in found if progress is not None]
    if not known:
        return None
    partitions: dict[str, dict[str, tuple[int | None, int]]] = {}
    for progress in known:
        for origin, entries in progress.partitions.items():
            if not origin.startswith("source/"):
                continue
            mine = partitions.setdefault(origin, {})
            for name, (watermark_ms, moved_ms) in entries.items():
                other_ms, other_moved_ms = mine.get(name, (watermark_ms, moved_ms))
                least_ms = None if None in (watermark_ms, other_ms) else min(watermark_ms or 0, other_ms or 0)
                mine[name] = least_ms, max(moved_ms, other_moved_ms)
    watermarks = [progress.watermark_ms for progress in known]
    return Progress(
        partitions, None if None in watermarks else min(at for at in watermarks if at is not None)
    )


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((at for at in (one_ms, other_ms) if at is not None), default=None)
