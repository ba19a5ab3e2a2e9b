"""Bound sources: a source of the job with the log that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.runtime.command_reader import CommandReader
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.start_signal import StartReader
from penstock.sources.base import ReplayableLog
from penstock.streams.graph import SourceNode

__all__ = ["BoundSource"]


@dataclass(frozen=True)
class BoundSource:
    """A source of the job, the log that it reads, and the reader that makes packed rows of its records."""

    node: SourceNode
    log: ReplayableLog[Any]
    reader: StreamReader | CommandReader | StartReader
