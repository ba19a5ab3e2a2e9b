"""Record receivers: custom sources that give each record once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from penstock.connectors.given_record import GivenRecord

__all__ = ["Received", "RecordReceiver", "SourceGuarantee"]

SourceGuarantee: TypeAlias = Literal["each record once", "at least once"]


@dataclass(frozen=True)
class Received:
    """Records that have come together, and the position after them, if the source has positions.

    >>> Received([{"room": 5}], position="17").position
    '17'
    """

    records: Sequence[GivenRecord]
    position: str = ""


class RecordReceiver(ABC):
    """A source that gives each record once: a queue, a socket, a service that is polled.

    Derive from it, and bind a stream to `python:module:Class?option=value`, with options as for `RecordLog`. penstock
    writes the records to a journal in the checkpoint before the job sees them, so a replay reads the same bytes.

    A receiver runs in a thread of the process that starts the job. When a method raises OSError (ConnectionError,
    TimeoutError) the object is closed and a new one is opened, after a pause.

    `guarantee` is what the class states: "each record once" if it continues exactly after the position with which it is
    opened, else "at least once".

    >>> class Counter(RecordReceiver):
    ...     guarantee = "each record once"
    ...     def open(self, after):
    ...         self.next = 0 if after is None else int(after)
    ...     def receive(self, wait_s):
    ...         self.next += 1
    ...         return Received([{"number": self.next}], position=str(self.next))
    >>> counter = Counter()
    >>> counter.open(after="41")
    >>> counter.receive(0.2).records
    [{'number': 42}]
    """

    guarantee: ClassVar[SourceGuarantee] = "at least once"

    @abstractmethod
    def open(self, after: str | None) -> None:
        """Connect, to receive what comes after the newest position that is in the journal; None if it has none."""

    @abstractmethod
    def receive(self, wait_s: float) -> Received | None:
        """Wait until records come, at most this many seconds, and return them, or `Received([])`.

        None says that nothing more has come: a bounded run ends, another one closes the object and opens a new one
        after a pause, of a tenth of a second at first and of five at most while nothing comes.
        """

    def acknowledge(self, received: Received) -> None:  # noqa: B027  # many sources need none
        """Let the source forget records: they are in the journal, on disk. Called in the order of `receive`."""

    def close(self) -> None:  # noqa: B027  # many have nothing to close
        """Close the connection."""
