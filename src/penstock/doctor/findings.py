"""Findings: what a check has found, how it stands, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Status", "failed", "fine", "refused", "warning", "worst"]

Status: TypeAlias = Literal["ok", "warning", "failed"]

_ORDER: Final[tuple[Status, ...]] = ("ok", "warning", "failed")
# Behind the first sentence of an error's message stands what to do.
_SENTENCE_END: Final = re.compile(r"(?<=\.)\s+(?=[A-Z])")


class Finding(msgspec.Struct, frozen=True):
    """What one check has found.

    With `warning` jobs run, but not as well as they could, or not for long; with `failed` they do not run.
    """

    check: str
    status: Status
    found: str
    remedy: str = ""


def fine(check: str, found: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Jobs run all the same."""
    return Finding(check, "warning", found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """Jobs do not run."""
    return Finding(check, "failed", found, remedy)


def refused(check: str, error: Exception) -> Finding:
    """What penstock itself would refuse to start with: its message says what happened, and then what to do.

    >>> refused("checkpoint", ValueError("The folder is damaged. Restore it."))
    Finding(check='checkpoint', status='failed', found='The folder is damaged.', remedy='Restore it.')
    """
    happened, *remedy = _SENTENCE_END.split(str(error), maxsplit=1)
    return failed(check, happened, remedy[0] if remedy else "See the message.")


def worst(findings: Iterable[Finding]) -> Status:
    """How it stands as a whole."""
    return max((finding.status for finding in findings), key=_ORDER.index, default="ok")
