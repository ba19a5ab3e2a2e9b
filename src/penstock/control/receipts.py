"""Receipts: what became of a command, put together from what each slot of each step reports."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.base.instants import instant_of

__all__ = [
    "FINAL",
    "Outcome",
    "Receipt",
    "RecordPosition",
    "Report",
    "Status",
    "StepTime",
    "Trace",
    "slowest_time",
]

Status = Literal["ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
Outcome = Literal["applied", "degraded", "refused", "duplicate"]

FINAL: Final = ("REJECTED", "APPLIED", "DEGRADED")
"""After one of these nothing more becomes of a command."""


class RecordPosition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where a command stands in its stream: what tells two commands of one id apart."""

    stream: str
    partition: str
    offset: int


class StepTime(msgspec.Struct, frozen=True, array_like=True):
    """How far the event time of a step is: its watermark in milliseconds since 1970, None before the first.

    `held_by` is the stream and partition, or the step, that holds it; None when nothing does.
    """

    watermark_ms: int | None
    held_by: str | None = None

    @property
    def watermark(self) -> dt.datetime | str | None:
        """The watermark for people; as text what no datetime can tell."""
        if self.watermark_ms is None:
            return None
        try:
            return instant_of(self.watermark_ms)
        except OverflowError:
            return f"{self.watermark_ms} ms"


def slowest_time(times: Iterable[StepTime]) -> StepTime | None:
    """That of the slowest of some slots; None of none."""
    return min(times, key=_slowest_first, default=None)


def _slowest_first(time: StepTime) -> tuple[Any, ...]:
    return time.watermark_ms is not None, time.watermark_ms or 0, time.held_by or ""


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """What a slot of a step says of itself when it is asked for a trace.

    `time` is there in a step that goes by event time.
    """

    step: str
    level: int
    key_groups: int
    keys: int
    paused: bool
    settings: Any = None
    time: StepTime | None = None


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one slot did with a command.

    `failed` has the key groups in which a handler raised, `key_groups` those that the command touched, and `keys` the
    number of keys in them. `replies` are what handlers answered, with the keys they answered for. `alone` tells that no
    other slot reports on the command.
    """

    place: RecordPosition
    id: str
    kind: str
    target: str
    version: int | None
    issued_by: str
    outcome: Outcome
    reason: str = ""
    key_groups: Sequence[int] = ()
    failed: Sequence[int] = ()
    keys: int = 0
    replies: Sequence[tuple[Any, Any]] = ()
    trace: Trace | None = None
    alone: bool = False


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One receipt of a command: what became of command `id` in micro-batch `batch`, whose time is `at`.

    `key_groups` and `keys` count what the command touched; `degraded` names the key groups in which a handler raised;
    `details` is JSON with what handlers replied, or what each step says of itself for a trace.
    """

    id: str
    status: str
    kind: str
    target: str
    version: int | None
    issued_by: str
    batch: int
    at: dt.datetime
    reason: str = ""
    key_groups: int = 0
    keys: int = 0
    degraded: list[int] = []
    details: str = ""
