"""The exchange: rows go from what has read or emitted them to the slots of their key groups, in all tasks.

Each task connects to each other task twice: once for what its readers send, which waits while the other task has too
much to do, and once for what its slot sends, which never waits. (If it did, two slots could wait for each other.)
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.realtime.inbox import Delivery, Inbox, PeerLostError
from penstock.realtime.messages import (
    GREETING_TIMEOUT_S,
    MAX_GREETING_BYTES,
    Bundle,
    Joined,
    connect,
    knows_secret,
    receive,
    send,
)
from penstock.realtime.slot_rounds import FOR_EACH_LEVEL
from penstock.runtime.packed_rows import PackedRow, encode_body
from penstock.runtime.plan import JobPlan

__all__ = ["Exchange"]

_joined: Final = msgspec.msgpack.Decoder(Joined)
_bundles: Final = msgspec.msgpack.Decoder(Bundle)


class Exchange:
    """The exchange as one task sees it. It listens at `address`.

    Args:
        plan: the plan of the job.
        task: the number of the task.
        inbox: the inbox of the task's slot.
        host: the name under which other tasks reach this machine.
        secret: what tasks of this interval know.

    """

    def __init__(self, plan: JobPlan, task: int, inbox: Inbox, host: str, secret: str) -> None:
        self._task: Final = task
        self._inbox: Final = inbox
        self._secret: Final = secret
        self._count: Final = plan.parallelism
        self._key_groups: Final = plan.key_groups
        self._levels: Final = {
            node.id: number for number, level in enumerate(plan.levels(), 1) for node in level
        }
        self._depth: Final = len(plan.levels())
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._reading: dict[int, socket.socket] = {}
        self._running: dict[int, socket.socket] = {}
        # Readers are many threads. One that waits must not hold up the slot.
        self._reading_lock: Final = threading.Lock()
        self._running_lock: Final = threading.Lock()
        self._server: Final = socket.create_server((host, 0), backlog=2 * self._count)
        self.address: Final[tuple[str, int]] = (host, self._server.getsockname()[1])

    def connect(self, peers: list[tuple[str, int]]) -> None:
        """Connect to all tasks, and let them connect."""
        threading.Thread(target=self._accept, daemon=True).start()
        for task, address in enumerate(peers):
            if task == self._task:
                continue
            for found in (self._reading, self._running):
                one = found[task] = connect(address)
                send(one, Joined(self._secret, waits=found is self._reading))
                self._sockets.append(one)

    def _accept(self) -> None:
        """Let tasks connect, until the task ends."""
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._server.accept()
                self._sockets.append(one)
                threading.Thread(target=self._receive, args=(one,), daemon=True).start()

    def _receive(self, one: socket.socket) -> None:
        """Put what a task sends into the inbox."""
        joined = self._greeting(one)
        if joined is None:
            one.close()
            return
        try:
            while True:
                bundle = receive(one, _bundles)
                rows = None if bundle.rows is None else list(map(PackedRow._make, bundle.rows))
                delivery = Delivery(bundle.sender, bundle.level, rows, bundle.through)
                if not self._inbox.offer(delivery, waits=joined.waits):
                    return
        except (OSError, msgspec.DecodeError) as e:
            self._lose(e)

    def _greeting(self, one: socket.socket) -> Joined | None:
        """Return how a task introduces itself; None for anybody else."""
        one.settimeout(GREETING_TIMEOUT_S)
        try:
            joined: Joined = receive(one, _joined, MAX_GREETING_BYTES)
            one.settimeout(None)
        except (OSError, msgspec.DecodeError):
            return None
        return joined if knows_secret(joined, self._secret) else None

    def _lose(self, error: Exception) -> PeerLostError:
        lost = PeerLostError(f"another task of the interval is gone ({error})")
        if not self._is_over:
            self._inbox.fail(lost)
        return lost

    def send_read(self, sender: str, rows: Iterable[PackedRow]) -> None:
        """Send what a reader has read."""
        direct = self._send(sender, rows, 1, is_reader=True)
        if direct:
            self._inbox.put(Delivery(sender, 0, direct), waits=True)

    def end_read(self, sender: str, through: int = 0) -> None:
        """Tell all slots that a reader has ended, or with HISTORY, that it has read what was there at the start."""
        self._end(Delivery(sender, 0, None, through), self._reading, self._reading_lock)

    def send_emitted(self, sender: str, rows: Iterable[PackedRow], level: int) -> list[PackedRow]:
        """Send what the slot has emitted. Return the rows for sinks and the driver."""
        return self._send(sender, rows, level, is_reader=False)

    def end_level(self, sender: str, through: int) -> None:
        """Tell all slots that this slot emits nothing more from levels up to one."""
        self._end(Delivery(sender, 0, None, through), self._running, self._running_lock)

    def _send(
        self, sender: str, rows: Iterable[PackedRow], level: int, *, is_reader: bool
    ) -> list[PackedRow]:
        direct: list[PackedRow] = []
        found: dict[tuple[int, int], list[PackedRow]] = {}
        for row in rows:
            for_level = self._levels.get(row.destination, 0)
            if row.destination in FOR_EACH_LEVEL:
                for_level = level
                if level > self._depth:
                    continue
            if for_level == 0:
                direct.append(row)
                continue
            task = row.key_group * self._count // self._key_groups
            row = encode_body(row)
            found.setdefault((for_level, task), []).append(row._replace(body=bytes(row.body)))
        for (for_level, task), some in sorted(found.items()):
            self._deliver(Delivery(sender, for_level, some), task, is_reader=is_reader)
        return direct

    def _deliver(self, delivery: Delivery, task: int, *, is_reader: bool) -> None:
        if task == self._task:
            self._inbox.put(delivery, waits=is_reader)
            return
        to = (self._reading if is_reader else self._running)[task]
        assert delivery.rows is not None
        bundle = Bundle(delivery.sender, delivery.level, [tuple(row) for row in delivery.rows])
        with self._reading_lock if is_reader else self._running_lock:
            self._tell(to, bundle)

    def _tell(self, to: socket.socket, bundle: Bundle) -> None:
        try:
            send(to, bundle)
        except OSError as e:
            raise self._lose(e) from e

    def _end(self, delivery: Delivery, sockets: dict[int, socket.socket], lock: threading.Lock) -> None:
        self._inbox.put(delivery)
        with lock:
            for one in sockets.values():
                self._tell(one, Bundle(delivery.sender, 0, None, delivery.through))

    def finish(self) -> None:
        """Note that everything has come, so that other tasks may go."""
        self._is_over = True

    def close(self) -> None:
        """Close all connections."""
        for one in [self._server, *self._sockets]:
            one.close()
