"""The exchange: takes rows from their readers and steps to the slots of their key groups, in all engines.

Each engine connects to each other engine twice: once for the rows of its readers, which wait while the other is
overloaded, and once for the rows of its slot, which never wait. (If they did, two slots could wait for each other.)
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Iterable
from typing import BinaryIO, Final

import msgspec

from penstock.metrics.source_times import SourceTimes
from penstock.realtime.inbox import Delivery, Inbox, PeerLostError
from penstock.realtime.messages import (
    Bundle,
    Joined,
    connect,
    hang_up,
    receive_from,
    receive_greeting,
    send,
)
from penstock.realtime.slot_rounds import FOR_EACH_LEVEL
from penstock.runtime.packed_rows import PackedRow, encode_body
from penstock.runtime.plan import JobPlan

__all__ = ["Exchange"]

_BUFFER_BYTES: Final = 64 << 10
# Each connection has a thread of its own, and on a busy machine an engine may stand still for seconds.
_GREETING_TIMEOUT_S: Final = 30.0

_joined: Final = msgspec.msgpack.Decoder(Joined)
_bundles: Final = msgspec.msgpack.Decoder(Bundle)


class Exchange:
    """The exchange as one engine sees it. It listens at `address`.

    Args:
        plan: the plan of the job.
        task: the number of the slot.
        inbox: the inbox of the slot.
        host: the name under which other engines reach this machine.
        secret: the secret that engines of this run know.

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
        self._is_closed = False
        self._sockets: list[socket.socket] = []
        self._reading: dict[int, socket.socket] = {}
        self._running: dict[int, socket.socket] = {}
        # Readers are many threads. One that waits must not hold up the slot.
        self._reading_lock: Final = threading.Lock()
        self._running_lock: Final = threading.Lock()
        self._server: Final = socket.create_server((host, 0), backlog=2 * self._count)
        self.address: Final[tuple[str, int]] = (host, self._server.getsockname()[1])

    def connect(self, peers: list[tuple[str, int]]) -> None:
        """Connect to all engines, and accept their connections."""
        threading.Thread(target=self._accept, daemon=True).start()
        for task, address in enumerate(peers):
            if task == self._task:
                continue
            for found in (self._reading, self._running):
                one = found[task] = connect(address)
                send(one, Joined(self._secret, waits=found is self._reading))
                self._sockets.append(one)

    def _accept(self) -> None:
        """Accept connections of engines, until this one ends."""
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._server.accept()
                self._sockets.append(one)
                if self._is_closed:
                    # It connected while this engine was closing its connections.
                    hang_up(one)
                threading.Thread(target=self._receive, args=(one,), daemon=True).start()

    def _receive(self, one: socket.socket) -> None:
        """Receive the rows of an engine into the inbox."""
        joined: Joined | None = receive_greeting(one, _joined, self._secret, _GREETING_TIMEOUT_S)
        if joined is None:
            one.close()
            return
        with io.BufferedReader(one.makefile("rb", 0), _BUFFER_BYTES) as stream:
            self._receive_all(stream, waits=joined.waits)

    def _receive_all(self, stream: BinaryIO, *, waits: bool) -> None:
        try:
            while True:
                bundle: Bundle = receive_from(stream, _bundles)
                rows = None if bundle.rows is None else list(map(PackedRow._make, bundle.rows))
                delivery = Delivery(
                    bundle.sender,
                    bundle.interval,
                    bundle.level,
                    rows,
                    bundle.through,
                    bundle.at_end,
                    bundle.times,
                )
                if not self._inbox.offer(delivery, waits=waits):
                    return
        except (OSError, msgspec.DecodeError) as e:
            self._lose(e)

    def _lose(self, error: Exception) -> PeerLostError:
        lost = PeerLostError(f"another engine of the job is gone ({error})")
        if not self._is_over:
            self._inbox.fail(lost)
        return lost

    def send_read(
        self, sender: str, interval: int, rows: Iterable[PackedRow], times: SourceTimes | None
    ) -> None:
        """Send the rows of a reader, with the times of the records. The thread of this slot is not woken for them."""
        mine, direct = self._send(Delivery(sender, interval, 1, None, times=times), rows, is_reader=True)
        if direct:
            mine.append(Delivery(sender, interval, 0, direct, times=times))
        if mine:
            # Together, for one turn of the slot.
            self._inbox.put(*mine, waits=True, wakes=False)

    def end_read(self, sender: str, interval: int, through: int = 0) -> None:
        """Tell all slots that a reader has ended an interval, or with HISTORY, that it has read the history."""
        self._end(Delivery(sender, interval, 0, None, through), self._reading, self._reading_lock)

    def send_emitted(
        self,
        sender: str,
        interval: int,
        rows: Iterable[PackedRow],
        times: SourceTimes | None,
        level: int,
        *,
        at_end: bool,
    ) -> list[PackedRow]:
        """Send the rows that the slot has emitted, with the times of their causes, perhaps for the end of the interval.

        Return the rows for sinks and the driver.
        """
        like = Delivery(sender, interval, level, None, at_end=at_end, times=times)
        mine, direct = self._send(like, rows, is_reader=False)
        if mine:
            self._inbox.put(*mine)
        return direct

    def end_level(self, sender: str, interval: int, through: int) -> None:
        """Tell all slots that this slot emits nothing more in an interval from the levels up to this one."""
        self._end(Delivery(sender, interval, 0, None, through), self._running, self._running_lock)

    def _send(
        self, like: Delivery, rows: Iterable[PackedRow], *, is_reader: bool
    ) -> tuple[list[Delivery], list[PackedRow]]:
        """Send rows to other slots; `like` has the other fields of their bundle, and the level for rows to all.

        Return the deliveries for this slot, and the rows for sinks and the driver.
        """
        mine: list[Delivery] = []
        direct: list[PackedRow] = []
        found: dict[tuple[int, int], list[PackedRow]] = {}
        for row in rows:
            for_level = self._levels.get(row.destination, 0)
            if row.destination in FOR_EACH_LEVEL:
                for_level = like.level
                if for_level > self._depth:
                    continue
            if for_level == 0:
                direct.append(row)
                continue
            task = row.key_group * self._count // self._key_groups
            row = encode_body(row)
            found.setdefault((for_level, task), []).append(row._replace(body=bytes(row.body)))
        for (for_level, task), some in sorted(found.items()):
            delivery = like._replace(level=for_level, rows=some)
            if task == self._task:
                mine.append(delivery)
            else:
                self._deliver(delivery, task, is_reader=is_reader)
        return mine, direct

    def _deliver(self, delivery: Delivery, task: int, *, is_reader: bool) -> None:
        to = (self._reading if is_reader else self._running)[task]
        with self._reading_lock if is_reader else self._running_lock:
            self._tell(to, delivery)

    def _tell(self, to: socket.socket, delivery: Delivery) -> None:
        sender, interval, level, found, through, at_end, times = delivery
        rows = None if found is None else [tuple(row) for row in found]
        try:
            send(to, Bundle(sender, interval, level, rows, through, at_end, times))
        except OSError as e:
            raise self._lose(e) from e

    def _end(self, delivery: Delivery, sockets: dict[int, socket.socket], lock: threading.Lock) -> None:
        self._inbox.put(delivery)
        with lock:
            for one in sockets.values():
                self._tell(one, delivery)

    def finish(self) -> None:
        """Note that everything has arrived. From now on other engines may end."""
        self._is_over = True

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for one in [self._server, *self._sockets]:
            hang_up(one)
