"""Feeds: how simulated rooms talk to the job, and how what was really read and written is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

__all__ = ["COMMANDS", "READINGS", "SETTINGS", "Batch", "Evidence", "Feed", "Record"]

Record = dict[str, Any]

READINGS: Final = "readings"
SETTINGS: Final = "settings"
COMMANDS: Final = "heaters"


class Feed(Protocol):
    """The way into the job and out of it."""

    @property
    def place(self) -> str:
        """Where the streams are, for people."""

    @property
    def bindings(self) -> Mapping[str, str]:
        """The binding of each stream of the job."""

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Let the job read more records."""

    def new_commands(self) -> list[Record]:
        """The commands that the job has written since the last call."""

    def evidence(self, checkpoint: str) -> Evidence:
        """A fresh look at everything, from the first micro-batch on."""


@dataclass(frozen=True)
class Batch:
    """What one micro-batch read, in the order that counts."""

    batch_id: int
    settings: Sequence[Record]
    readings: Sequence[Record]


class Evidence(Protocol):
    """What the job has really read and written, taken from the streams themselves and the checkpoint's cuts."""

    @property
    def tells_batch(self) -> bool:
        """Whether it is known which micro-batch wrote a command."""

    def batch(self, batch_id: int) -> Batch:
        """What a micro-batch read. Batches are asked for one after the other, from 0."""

    def commands(self, batch_id: int) -> list[Record]:
        """The commands that a micro-batch wrote; or, where that is not known, those that are new."""

    def close(self) -> None:
        """Let go of what it holds."""
