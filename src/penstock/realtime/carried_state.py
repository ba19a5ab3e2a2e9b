"""Carried state: the stored state of a slot as its engine sees it, between the tasks that Spark starts for it.

Spark's state is open only in the task of an interval, which may run in another process than the engine. The task
connects to the desk of the engine. Through it the engine reads what it does not have in memory, and gives it at the end
of the interval what has changed.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.realtime.inbox import PeerLostError
from penstock.realtime.messages import (
    Carry,
    Content,
    Failed,
    Outcome,
    Put,
    Read,
    hang_up,
    receive,
    receive_greeting,
    send,
)

__all__ = ["CarriedStates", "Desk"]

# Entries up to this size, mainly the heads of logs, stay in memory after they were written.
_SMALL_BYTES: Final = 64 << 10

_carry: Final = msgspec.msgpack.Decoder(Carry)
_content: Final = msgspec.msgpack.Decoder(Content)


class _Visitor:
    """The task of an interval, while it is connected. `has_all` is set once it needs nothing more."""

    def __init__(self, interval: int, connection: socket.socket) -> None:
        self.interval: Final = interval
        self.connection: Final = connection
        self.answers: Final[queue.SimpleQueue[Content | None]] = queue.SimpleQueue()
        self.has_all = False


class Desk:
    """The server of an engine to which the task of each interval connects. It listens at `address`.

    Args:
        host: the name under which tasks reach this machine.
        secret: the secret that tasks of this run know.
        fail: called when a task ends before it has received everything.

    """

    def __init__(self, host: str, secret: str, fail: Callable[[BaseException], None]) -> None:
        self._secret: Final = secret
        self._fail: Final = fail
        self._changed: Final = threading.Condition()
        self._visitor: _Visitor | None = None
        self._is_closed = False
        self._server: Final = socket.create_server((host, 0))
        self.address: Final[tuple[str, int]] = (host, self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="desk", daemon=True).start()

    def _accept(self) -> None:
        """Accept the tasks, one after the other, until the engine ends."""
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._server.accept()
                self._serve(one)

    def _serve(self, one: socket.socket) -> None:
        carry: Carry | None = receive_greeting(one, _carry, self._secret)
        if carry is None:
            one.close()
            return
        visitor = _Visitor(carry.number, one)
        with self._changed:
            if self._is_closed:
                one.close()
                return
            self._visitor = visitor
            self._changed.notify_all()
        try:
            while True:
                visitor.answers.put(receive(one, _content))
        except (OSError, msgspec.DecodeError) as e:
            visitor.answers.put(None)
            if not visitor.has_all:
                self._fail(PeerLostError(f"the task of interval {carry.number} is gone ({e})"))
        finally:
            one.close()

    def read(self, interval: int, step_id: str, name: str) -> bytes | None:
        """Read a stored entry as it is before an interval. Waits for the task of the interval."""
        visitor = self._await(interval)
        send(visitor.connection, Read(step_id, name))
        answer = visitor.answers.get()
        if answer is None:
            raise PeerLostError(f"the task of interval {interval} is gone")
        return answer.content

    def deliver(self, interval: int, entries: list[Put], outcome: Outcome) -> None:
        """Send the task of an interval the entries to store and the reports."""
        visitor = self._await(interval)
        for entry in entries:
            send(visitor.connection, entry)
        visitor.has_all = True
        send(visitor.connection, outcome)

    def _await(self, interval: int) -> _Visitor:
        """Wait for the task of an interval, and return it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or (self._visitor is not None and self._visitor.interval >= interval)
            )
            if self._is_closed or self._visitor is None:
                raise PeerLostError("the engine has ended")
            return self._visitor

    def close(self, failure: Failed | None) -> None:
        """End. Report to a connected task why the engine has failed."""
        with self._changed:
            self._is_closed = True
            visitor = self._visitor
            self._changed.notify_all()
        hang_up(self._server)
        if visitor is None or visitor.has_all:
            return
        if failure is not None:
            with contextlib.suppress(OSError):
                send(visitor.connection, failure)
        with contextlib.suppress(OSError):
            visitor.connection.shutdown(socket.SHUT_RDWR)


class CarriedStates:
    """The stored states of a slot's steps.

    The changes of an interval may be put after the next one has begun.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._interval = 0
        # Changes that Spark may not have yet, and the interval of each.
        self._pending: Final[dict[tuple[str, str], tuple[int, bytes | None]]] = {}
        self._small: Final[dict[tuple[str, str], bytes]] = {}
        self._changes: Final[dict[int, dict[tuple[str, str], bytes | None]]] = {}

    def begin(self, interval: int) -> None:
        """Begin an interval. Its task sees the entries that all intervals but the last have stored."""
        self._interval = interval
        self._changes[interval] = {}
        for key in [key for key, (number, _) in self._pending.items() if number < interval - 1]:
            del self._pending[key]

    def entries(self, step_id: str) -> _CarriedEntries:
        """Return the stored entries of a step, as the present interval reads and changes them."""
        return _CarriedEntries(self, step_id, self._interval)

    def take_changes(self, interval: int) -> list[Put]:
        """Return the entries that an interval has changed, in the order of their first changes."""
        changes = self._changes.pop(interval)
        return [Put(step_id, name, content) for (step_id, name), content in changes.items()]

    def get(self, key: tuple[str, str], interval: int) -> bytes | None:
        """Return an entry of a step."""
        if key in self._pending:
            return self._pending[key][1]
        if key in self._small:
            return self._small[key]
        content = self._desk.read(interval, *key)
        if content is not None and len(content) <= _SMALL_BYTES:
            self._small[key] = content
        return content

    def put(self, key: tuple[str, str], content: bytes | None, interval: int) -> None:
        """Set an entry of a step in an interval; None removes it."""
        self._pending[key] = (interval, content)
        self._changes[interval][key] = content
        self._small.pop(key, None)
        if content is not None and len(content) <= _SMALL_BYTES:
            self._small[key] = content


class _CarriedEntries:
    """The stored entries of one step."""

    def __init__(self, states: CarriedStates, step_id: str, interval: int) -> None:
        self._states: Final = states
        self._step_id: Final = step_id
        self._interval: Final = interval

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist."""
        return self._states.get((self._step_id, name), self._interval)

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""
        self._states.put((self._step_id, name), content, self._interval)

    def remove(self, name: str) -> None:
        """Remove a name."""
        self._states.put((self._step_id, name), None, self._interval)
