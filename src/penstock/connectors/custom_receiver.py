"""Own receivers: a `RecordReceiver` of the user's that fills the journal of a stream."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, Self

from penstock.bindings.types import PythonBinding
from penstock.connectors.custom_class import in_custom_class, make_custom
from penstock.connectors.given_record import bytes_of
from penstock.connectors.record_receiver import Received, RecordReceiver
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import IDLE_S, MAX_BYTES, Receiver, group_end_s

__all__ = ["CustomReceiver"]

_MAX_RECORDS: Final = 10_000


class CustomReceiver(Receiver["_Opened"]):
    """A receiver that journals what an object of the user's class receives, with the newest position as the note.

    So the next start continues after what the journal has, and a position is there exactly if the records
    before it are. A bounded run ends when the object says that nothing more has come.
    """

    def __init__(self, binding: PythonBinding, journal: JournalWriter, *, bounded: bool = False) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        newest = next(filter(None, journal.notes()), b"")
        self._position: str | None = newest.decode() or None

    def _connect(self) -> _Opened:
        return _Opened(self._binding, self._position)

    def _receive(self, connection: _Opened) -> None:
        waiting = _Waiting()
        committed_s = 0.0
        while not self._stopping.is_set():
            due_s = group_end_s(committed_s) - time.monotonic() if waiting.received else IDLE_S
            found = None if waiting.is_full or due_s <= 0 else connection.receive(due_s)
            if found is not None:
                waiting.add(found)
            elif waiting.received:
                self._commit(connection, waiting)
                waiting, committed_s = _Waiting(), time.monotonic()
            else:
                return
        self._commit(connection, waiting)

    def _commit(self, connection: _Opened, waiting: _Waiting) -> None:
        self._journal.append(waiting.records, (waiting.position or "").encode())
        self._position = waiting.position or self._position
        for received in waiting.received:
            connection.acknowledge(received)


class _Waiting:
    """The records that were received and are not in the journal yet."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.records: list[bytes] = []
        self.position = ""
        self._bytes = 0

    def add(self, received: Received) -> None:
        if not received.records and not received.position:
            return
        records = [bytes_of(record) for record in received.records]
        self.received.append(received)
        self.records += records
        self.position = received.position or self.position
        self._bytes += sum(map(len, records))

    @property
    def is_full(self) -> bool:
        """Whether the records go to the journal at once."""
        return len(self.records) >= _MAX_RECORDS or self._bytes >= MAX_BYTES


class _Opened:
    """An object of the user's class that is connected; a context manager, which closes it."""

    def __init__(self, binding: PythonBinding, after: str | None) -> None:
        self._binding = binding
        self._own: RecordReceiver = make_custom(binding)
        try:
            with in_custom_class(binding, "open"):
                self._own.open(after)
        except BaseException:
            with suppress(Exception):
                self._own.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with in_custom_class(self._binding, "close"):
            self._own.close()

    def receive(self, wait_s: float) -> Received | None:
        with in_custom_class(self._binding, "receive"):
            found = self._own.receive(wait_s)
            if found is not None and not isinstance(found, Received):
                raise TypeError(f"receive returns Received(records) or None, not {type(found).__name__}")
            return found

    def acknowledge(self, received: Received) -> None:
        with in_custom_class(self._binding, "acknowledge"):
            self._own.acknowledge(received)
