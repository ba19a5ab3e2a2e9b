"""Receipts: what became of a command, put together from what each slot of each step reports."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from penstock.instants import instant_of

__all__ = [
    "FINAL",
    "Batch",
    "Outcome",
    "Place",
    "Receipt",
    "Report",
    "Status",
    "StepTime",
    "Story",
    "Trace",
    "slowest_time",
    "stories",
]

Status = Literal["ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
Outcome = Literal["applied", "degraded", "refused", "duplicate"]

FINAL: Final = ("REJECTED", "APPLIED", "DEGRADED")
"""After one of these nothing more becomes of a command."""

_MOST_REPLIES: Final = 1000


class Place(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
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

    place: Place
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
    """One line of a command's story: what became of command `id` in micro-batch `batch`, whose time is `at`.

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


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Receipt)


class Story(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one command in a micro-batch: its receipts as JSON Lines, and its place, by which stories sort."""

    place: Place
    lines: bytes

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts."""
        return _decoder.decode_lines(self.lines)


@dataclass(frozen=True)
class Batch:
    """A micro-batch: its number, its time, and how many records each step has processed up to and with it."""

    number: int
    at: dt.datetime
    records: Mapping[str, int] = field(default_factory=dict)


def stories(reports: Iterable[Report], batch: Batch) -> list[Story]:
    """The stories of a micro-batch, in the order of the commands; the same for any order of the reports.

    A command that only duplicates an earlier one has none: the earlier one has its own. What could not be admitted is
    ACCEPTED, that is read, and REJECTED; the rest is ACCEPTED, VALIDATED, and APPLIED or DEGRADED.
    """
    quick: list[Story] = []
    commands: dict[Place, list[Report]] = {}
    for report in reports:
        if report.alone and report.outcome == "applied" and not report.replies:
            quick.append(_applied(report, batch))
            continue
        found = commands.get(report.place)
        if found is None:
            commands[report.place] = [report]
        else:
            found.append(report)
    told = [(place, _receipts(commands[place], batch)) for place in sorted(commands)]
    rest = [Story(place, _encoder.encode_lines(receipts)) for place, receipts in told if receipts]
    return sorted([*quick, *rest], key=_place) if quick else rest


def _place(story: Story) -> Place:
    return story.place


def _applied(report: Report, batch: Batch) -> Story:
    """The story of a command that one slot has applied, as `_receipts` tells it, but for thousands of them a second."""
    accepted = _encoder.encode(
        Receipt(
            report.id,
            "ACCEPTED",
            report.kind,
            report.target,
            report.version,
            report.issued_by,
            batch.number,
            batch.at,
        )
    )
    # Quotes within values are escaped, so this is found nowhere else.
    validated = accepted.replace(b'"status":"ACCEPTED"', b'"status":"VALIDATED"', 1)
    applied = accepted.replace(b'"status":"ACCEPTED"', b'"status":"APPLIED"', 1)
    counts = b',"key_groups":%d,"keys":%d}' % (len(report.key_groups), report.keys)
    return Story(report.place, b"%b\n%b\n%b%b\n" % (accepted, validated, applied[:-1], counts))


def _receipts(reports: list[Report], batch: Batch) -> list[Receipt]:
    outcomes = {report.outcome for report in reports}
    if outcomes == {"duplicate"}:
        return []
    first = reports[0]
    known = (first.kind, first.target, first.version, first.issued_by, batch.number, batch.at)
    accepted = Receipt(first.id, "ACCEPTED", *known)
    if outcomes <= {"refused", "duplicate"}:
        reason = min(report.reason for report in reports if report.outcome == "refused")
        return [accepted, Receipt(first.id, "REJECTED", *known, reason)]
    validated = Receipt(first.id, "VALIDATED", *known)
    counts = (
        len({group for report in reports for group in report.key_groups}),
        sum(report.keys for report in reports),
    )
    details = _details(reports, batch)
    if "degraded" not in outcomes:
        return [accepted, validated, Receipt(first.id, "APPLIED", *known, "", *counts, [], details)]
    failed = sorted({group for report in reports for group in report.failed})
    reason = min(report.reason for report in reports if report.outcome == "degraded")
    return [accepted, validated, Receipt(first.id, "DEGRADED", *known, reason, *counts, failed, details)]


def _details(reports: list[Report], batch: Batch) -> str:
    traces = [report.trace for report in reports if report.trace is not None]
    if traces:
        return _encoded(_steps(traces, batch))
    replies = [reply for report in reports for reply in report.replies]
    if not replies:
        return ""
    if all(key is None for key, _ in replies):
        answers = [answer for _, answer in replies]
        return _encoded(answers[0] if len(answers) == 1 else answers)
    return _encoded(sorted(([key, answer] for key, answer in replies), key=_encoded)[:_MOST_REPLIES])


def _steps(traces: list[Trace], batch: Batch) -> list[dict[str, Any]]:
    """What each step says of itself, in the order in which records pass the steps."""
    found = []
    for level, step in sorted({(trace.level, trace.step) for trace in traces}):
        parts = [trace for trace in traces if trace.step == step]
        settings: Any = next((trace.settings for trace in parts if trace.settings is not None), {})
        slowest = slowest_time(trace.time for trace in parts if trace.time is not None)
        found.append(
            {
                "step": step,
                "level": level,
                "key_groups": sum(trace.key_groups for trace in parts),
                "keys": sum(trace.keys for trace in parts),
                "records": batch.records.get(step, 0),
                "paused": any(trace.paused for trace in parts),
                "settings": settings,
            }
            | ({"watermark": slowest.watermark, "held_by": slowest.held_by} if slowest else {})
        )
    return found


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
