"""Receipts: the result of a command, combined from the reports of each slot of each step."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.base.instants import instant_of
from penstock.control.commands import AT_ONCE, Apply

__all__ = [
    "FINAL",
    "Outcome",
    "Receipt",
    "RecordPosition",
    "Report",
    "StepTime",
    "Trace",
    "slowest_time",
]

Outcome = Literal["applied", "degraded", "refused", "duplicate", "undone"]

FINAL: Final = ("REJECTED", "APPLIED", "DEGRADED")
"""The statuses after which a command has no more receipts, unless another command undoes it with a reason: DEGRADED."""


class RecordPosition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The position of a command in its stream, which distinguishes two commands with the same id."""

    stream: str
    partition: str
    offset: int


class StepTime(msgspec.Struct, frozen=True, array_like=True):
    """The event time of a step: its watermark in milliseconds since 1970, None before the first.

    `held_by` is the stream and partition, or the step, that holds it back; None if nothing does.
    """

    watermark_ms: int | None
    held_by: str | None = None

    @property
    def watermark(self) -> dt.datetime | str | None:
        """The watermark for display; a text if it is out of the range of a datetime."""
        if self.watermark_ms is None:
            return None
        try:
            return instant_of(self.watermark_ms)
        except OverflowError:
            return f"{self.watermark_ms} ms"


def slowest_time(times: Iterable[StepTime]) -> StepTime | None:
    """Return the time of the slowest slot, or None if there are no slots."""
    return min(
        times,
        key=lambda time: (time.watermark_ms is not None, time.watermark_ms or 0, time.held_by or ""),
        default=None,
    )


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a slot of a step to a trace command.

    `time` is set if the step has event time.
    """

    step: str
    level: int
    key_groups: int
    keys: int
    paused: bool
    settings: Any = None
    time: StepTime | None = None


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of a command in one slot.

    `failed` has the key groups in which a handler raised, `key_groups` those that the command touched, and `keys` the
    number of keys in them. `replies` are the answers of handlers, with the keys for which they answered. `alone` means
    that no other slot reports on the command. A report that a command is `undone` has the place of the one that undoes
    it.
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
    apply: Apply = AT_ONCE


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One receipt of the command `id`: its status in the micro-batch `batch`, at the time `at`.

    The status is ACCEPTED, VALIDATED, or one of `FINAL`.

    `key_groups` and `keys` are the numbers of key groups and keys that the command touched. `degraded` has the key
    groups in which a handler raised. `details` is JSON with the replies of handlers, or each step's answer to a trace.
    `apply` is that of the command: whether, in real time, it took effect when it arrived or at the checkpoint.
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
    apply: str = AT_ONCE
