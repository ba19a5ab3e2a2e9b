"""Watermarks: the progress of event time in a slot, combined from the watermark updates of its inputs.

A watermark update holds the watermarks of a stream's partitions. The watermark of a slot is the minimum over the
partitions that are not idle, and never decreases (Akidau et al., "The Dataflow Model", VLDB 2015).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

__all__ = [
    "END_MS",
    "INGESTION_TIME",
    "EventClock",
    "InputWatermarkRule",
    "Progress",
    "WatermarkUpdate",
    "merge_progress",
]

INGESTION_TIME: Final = "__ingestion_time"
"""As an event-time field: the event time of a record is its arrival, the time of its micro-batch."""

END_MS: Final = 2**63 - 1
"""The watermark after all records."""

_BEFORE_ALL: Final = -(2**63)


class WatermarkUpdate(msgspec.Struct, array_like=True, frozen=True):
    """The watermarks of a stream's partitions, or of a step's slots, in milliseconds since 1970.

    `origin` is the id of the source or step; a slot of a step may have no watermark yet. If `ends`, time ends in this
    micro-batch, which fires all open windows and timers. If `idle`, the partitions do not hold back the watermark until
    their next update.
    """

    origin: str
    watermarks: Mapping[str, int | None]
    ends: bool = False
    idle: bool = False


@dataclass(frozen=True)
class InputWatermarkRule:
    """How the partitions of one origin count: those known in advance, and the silence after which one is idle.

    If `grows`, more partitions may appear. If `by_arrival`, the event time of records is that of the micro-batch.
    """

    origin: str
    partitions: tuple[str, ...]
    idle_ms: int | None = None
    grows: bool = False
    by_arrival: bool = False


Partitions = dict[str, dict[str, tuple[int | None, int | None]]]
"""The progress of the partitions of each origin, as in `Progress`."""


class Progress(msgspec.Struct):
    """The progress of event time that a slot stores for its inputs.

    `partitions` has, by origin and partition, the watermark (None before the first) and the time of the latest
    micro-batch with an update (None if the partition reported that it is idle). `watermark_ms` is the slot's own
    watermark, None before the first. `told` is the slot's latest update to the steps after it: its watermark, and
    whether it is idle.
    """

    partitions: Partitions = {}
    watermark_ms: int | None = None
    told: tuple[int | None, bool] = (None, False)


class EventClock:
    """The event time of a slot in one micro-batch.

    The argument `progress` is the stored one; the attribute is the one after this micro-batch. `before_ms` is the
    watermark while its records are processed, `after_ms` the watermark after them. If the step is `paused` the two are
    equal, while the watermarks of its inputs continue. `ends` is whether time ends.
    """

    def __init__(
        self,
        watermark_rules: Sequence[InputWatermarkRule],
        progress: Progress,
        updates: Iterable[WatermarkUpdate],
        now_ms: int,
        *,
        paused: bool = False,
    ) -> None:
        self._watermark_rules: Final = watermark_rules
        self._now_ms: Final = now_ms
        self._paused: Final = paused
        partitions: Partitions = {}
        for rule in watermark_rules:
            known = progress.partitions.get(rule.origin, {})
            names = dict.fromkeys([*rule.partitions, *(known if rule.grows else ())])
            partitions[rule.origin] = {name: known.get(name, (None, now_ms)) for name in names}
        ends = False
        for update in updates:
            ends = ends or update.ends
            known = partitions.get(update.origin, {})
            for name, watermark_ms in update.watermarks.items():
                before_ms = known.get(name, (None, 0))[0]
                known[name] = _later(before_ms, watermark_ms), None if update.idle else now_ms
        self.progress: Final = Progress(partitions, progress.watermark_ms, progress.told)
        if not paused:
            self.progress.watermark_ms = _later(progress.watermark_ms, self._least())
        self.before_ms: Final = progress.watermark_ms
        self.ends: Final = ends and not paused
        self.after_ms: Final = END_MS if self.ends else self.progress.watermark_ms

    def _least(self) -> int | None:
        """Return the smallest watermark of the partitions that are not idle; if all are idle, the largest of all."""
        working = [watermark_ms for _, _, watermark_ms in self._working()]
        working += [self._now_ms - 1 for rule in self._watermark_rules if rule.by_arrival]
        if working:
            return None if None in working else min(at for at in working if at is not None)
        entries = [entry for known in self.progress.partitions.values() for entry in known.values()]
        return max((watermark_ms for watermark_ms, _ in entries if watermark_ms is not None), default=None)

    def _working(self) -> Iterator[tuple[str, str, int | None]]:
        """Yield the partitions that are not idle: their origin, name and watermark."""
        for rule in self._watermark_rules:
            for name, (watermark_ms, moved_ms) in self.progress.partitions[rule.origin].items():
                if not self._is_silent(rule, moved_ms):
                    yield rule.origin, name, watermark_ms

    def _is_silent(self, rule: InputWatermarkRule, moved_ms: int | None) -> bool:
        if moved_ms is None:
            return True
        return rule.idle_ms is not None and self._now_ms - moved_ms >= rule.idle_ms

    @property
    def is_idle(self) -> bool:
        """Whether no input holds back the watermark. A paused step is never idle, since data waits in it."""
        by_arrival = any(rule.by_arrival for rule in self._watermark_rules)
        return not (self._paused or by_arrival or any(True for _ in self._working()))

    def next_update(self, origin: str, slot: str) -> WatermarkUpdate | None:
        """Return the update of a slot for the steps after it, and note it as sent; None if nothing has changed."""
        before, self.progress.told = self.progress.told, (self.progress.watermark_ms, self.is_idle)
        if self.progress.told == before:
            return None
        watermark_ms, idle = self.progress.told
        return WatermarkUpdate(origin, {slot: watermark_ms}, idle=idle)

    @property
    def moved(self) -> bool:
        """Whether the watermark has advanced."""
        return self.after_ms != self.before_ms

    @property
    def next_idle_ms(self) -> int | None:
        """When the next partition becomes idle, in milliseconds since 1970; None if none will."""
        found = [
            moved_ms + rule.idle_ms
            for rule in self._watermark_rules
            if rule.idle_ms is not None
            for _, moved_ms in self.progress.partitions[rule.origin].values()
            if moved_ms is not None
        ]
        return min((at for at in found if at > self._now_ms), default=None)

    @property
    def held_by(self) -> tuple[str, str] | None:
        """The origin and the partition that hold back the watermark, for display; None if there is none."""
        found = [
            (_BEFORE_ALL if watermark_ms is None else watermark_ms, origin, name)
            for origin, name, watermark_ms in self._working()
        ]
        return min(found)[1:] if found else None


def merge_progress(found: Sequence[Progress | None]) -> Progress | None:
    """Merge the progress of a step's slots into one, for slots that partition the keys differently.

    Updates from other steps are left out: their slots change as well, and send new updates. Until then, the watermark
    does not move.
    """
    known = [progress for progress in found if progress is not None]
    if not known:
        return None
    partitions: Partitions = {}
    for progress in known:
        for origin, entries in progress.partitions.items():
            if not origin.startswith("source/"):
                continue
            mine = partitions.setdefault(origin, {})
            for name, (watermark_ms, moved_ms) in entries.items():
                other_ms, other_moved_ms = mine.get(name, (watermark_ms, moved_ms))
                min_ms = None if None in (watermark_ms, other_ms) else min(watermark_ms or 0, other_ms or 0)
                mine[name] = min_ms, _later(moved_ms, other_moved_ms)
    watermarks = [progress.watermark_ms for progress in known]
    return Progress(
        partitions, None if None in watermarks else min(at for at in watermarks if at is not None)
    )


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((at for at in (one_ms, other_ms) if at is not None), default=None)
