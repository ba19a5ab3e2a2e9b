"""Receipts: what became of a command, put together from what each slot of each step reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

__all__ = ["Outcome", "Place", "Receipt", "Report", "Status", "merged"]

Status = Literal["ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
Outcome = Literal["applied", "degraded", "refused", "duplicate"]


class Place(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Where a command stands in its stream: what tells two commands of one id apart."""

    stream: str
    partition: str
    offset: int


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What one slot did with a command, or the reader of its stream when it is not well formed.

    `failed` has the key groups in which a handler raised, `key_groups` those that the command touched, and `keys` the
    number of keys in them.
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


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a command's story."""

    id: str
    status: Status
    kind: str
    target: str
    version: int | None
    issued_by: str
    batch: int
    reason: str = ""
    key_groups: int = 0
    keys: int = 0
    degraded: Sequence[int] = ()


def merged(reports: Iterable[Report], batch: int) -> list[Receipt]:
    """The receipts of one micro-batch, in the order of the commands; the same for any order of the reports.

    A command that only duplicates an earlier one has none: the earlier one has its own. What could not be admitted is
    ACCEPTED, that is read, and REJECTED; the rest is ACCEPTED, VALIDATED, and APPLIED or DEGRADED.
    """
    commands: dict[Place, list[Report]] = {}
    for report in reports:
        commands.setdefault(report.place, []).append(report)
    receipts: list[Receipt] = []
    for place in sorted(commands):
        receipts += _receipts(commands[place], batch)
    return receipts


def _receipts(reports: list[Report], batch: int) -> list[Receipt]:
    outcomes = {report.outcome for report in reports}
    if outcomes == {"duplicate"}:
        return []
    first = reports[0]

    def receipt(status: Status, **more: object) -> Receipt:
        return Receipt(
            first.id,
            status,
            first.kind,
            first.target,
            first.version,
            first.issued_by,
            batch,
            **more,  # type: ignore[arg-type]
        )

    if outcomes <= {"refused", "duplicate"}:
        reason = min(report.reason for report in reports if report.outcome == "refused")
        return [receipt("ACCEPTED"), receipt("REJECTED", reason=reason)]
    counts = {
        "key_groups": len({group for report in reports for group in report.key_groups}),
        "keys": sum(report.keys for report in reports),
    }
    early = [receipt("ACCEPTED"), receipt("VALIDATED")]
    if "degraded" not in outcomes:
        return [*early, receipt("APPLIED", **counts)]
    failed = tuple(sorted({group for report in reports for group in report.failed}))
    reason = min(report.reason for report in reports if report.outcome == "degraded")
    return [*early, receipt("DEGRADED", reason=reason, degraded=failed, **counts)]
