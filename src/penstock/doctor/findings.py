"""Findings: what a check has found, its status, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Status", "failed", "fine", "refused", "warning", "worst"]

Status: TypeAlias = Literal["ok", "warning", "failed"]

_ORDER: Final[tuple[Status, ...]] = ("ok", "warning", "failed")
# The remedy follows the first sentence of an error message.
_SENTENCE_END: Final = re.compile(r"(?<=\.)\s+(?=[A-Z])")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    With `warning` jobs run, but slower or not for long; with `failed` they do not run.
    """

    check: str
    status: Status
    found: str
    remedy: str = ""


def fine(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Return a finding with which jobs still run."""
    return Finding(check, "warning", found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """Return a finding with which jobs do not run."""
    return Finding(check, "failed", found, remedy)


def refused(check: str, error: Exception) -> Finding:
    """Return the finding for an error of penstock, whose message has first the problem, then the remedy.

    >>> refused("checkpoint", ValueError("The folder is damaged. Restore it."))
    Finding(check='checkpoint', status='failed', found='The folder is damaged.', remedy='Restore it.')
    """
    happened, *remedy = _SENTENCE_END.split(str(error), maxsplit=1)
    return failed(check, happened, remedy[0] if remedy else "See the message.")


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of all findings."""
    return max((finding.status for finding in findings), key=_ORDER.index, default="ok")
