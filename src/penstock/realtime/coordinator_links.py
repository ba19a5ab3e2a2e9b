"""Coordinator links: the streams and the checkpoint of a job, as its coordinator uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.sources.base import ReplayableLog

__all__ = ["CheckpointLinks", "CoordinatedStreams"]


@dataclass(frozen=True)
class CoordinatedStreams:
    """The streams of a job: the log of each, the control streams, and those that are held, so not read.

    `begins` are the offsets at which each stream begins, if the checkpoint has no interval.
    """

    logs: Mapping[str, ReplayableLog[Any]]
    controls: frozenset[str]
    held: frozenset[str]
    begins: Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class CheckpointLinks:
    """The links of a coordinator to the checkpoint of the run.

    `check` raises when the run no longer owns the checkpoint, or has read records that the checkpoint does not know.
    `confirm` saves what is durable on this machine to where the next run finds it, and raises the errors of `check`.
    `next_version` returns the version of what engines write from now on.
    """

    check: Callable[[], None]
    confirm: Callable[[], None]
    next_version: Callable[[], int] = lambda: 0
