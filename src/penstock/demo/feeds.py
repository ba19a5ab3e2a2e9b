"""Feeds: how simulated rooms communicate with the job, and evidence of what was actually read and written."""

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
    """The connection into the job and out of it."""

    @property
    def place(self) -> str:
        """A readable description of where the streams are."""

    @property
    def bindings(self) -> Mapping[str, str]:
        """The binding of each stream of the job."""

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Send records for the job to read."""

    def new_commands(self) -> list[Record]:
        """Return the commands that the job has written since the last call."""

    def evidence(self, checkpoint: str) -> Evidence:
        """Return new evidence, from the first micro-batch on."""


@dataclass(frozen=True)
class Batch:
    """The input of one micro-batch, in the order in which it counts."""

    batch_id: int
    settings: Sequence[Record]
    readings: Sequence[Record]


class Evidence(Protocol):
    """What the job has actually read and written, according to the streams themselves and the checkpoint's cuts."""

    @property
    def tells_batch(self) -> bool:
        """Whether the evidence knows which micro-batch wrote a command."""

    def batch(self, batch_id: int) -> Batch:
        """Return the input of a micro-batch. The caller requests batches in order, from 0."""

    def commands(self, batch_id: int) -> list[Record]:
        """Return the commands that a micro-batch wrote, or the new commands if the micro-batch is not known."""

    def close(self) -> None:
        """Release all resources."""
