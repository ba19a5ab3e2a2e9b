"""The coordinator: begins and ends the intervals of a job in the driver, and makes what they did durable."""

from __future__ import annotations

import contextlib
import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from penstock.realtime.interval_files import Interval, IntervalFiles
from penstock.realtime.interval_task import CoordinatorAddress
from penstock.realtime.messages import (
    GREETING_TIMEOUT_S,
    MAX_GREETING_BYTES,
    Busy,
    CaughtUp,
    Commit,
    Done,
    End,
    FromTask,
    Go,
    Hello,
    Push,
    Reading,
    StartData,
    knows_secret,
    receive,
    send,
)
from penstock.sources.base import ReplayableLog
from penstock.sources.kafka_log import KafkaLog

__all__ = ["Coordinator"]

# How often logs that are not topics are looked at for new records.
_LOOK_S: Final = 0.02
_SEND_TIMEOUT_S: Final = 30.0
_SECRET_BYTES: Final = 24

_decoder: Final = msgspec.msgpack.Decoder(FromTask)


@dataclass
class _Attempt:
    """The tasks that have come for an interval. `positions` are those after what was pushed, as the logs have them."""

    positions: dict[str, Any]
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    hellos: dict[int, Hello] = field(default_factory=dict)
    caught_up: set[int] = field(default_factory=set)
    awaits_history: bool = False
    done: dict[int, Done] = field(default_factory=dict)
    has_begun: bool = False
    # Nothing must be made durable before the first task has anything to do.
    ends_at_s: float = math.inf
    has_ended: bool = False


class Coordinator:
    """The coordinator of a job. `error` is what keeps an interval from ending.

    Use it as a context manager. Spark's thread calls `begin`, any thread `hasten`.

    Args:
        logs: the log of each stream.
        controls: the control streams.
        held: the streams of which nothing is read.
        first: where each stream begins, as offsets, if the checkpoint has no interval.
        files: the files of intervals.
        tasks: the number of tasks of an interval.
        drains: whether an interval reads what is there, and ends.
        interval_s: how long an interval takes, from the first work of its tasks on.
        host: the address at which to listen.
        check: raises when the run no longer owns the checkpoint.

    """

    def __init__(
        self,
        logs: Mapping[str, ReplayableLog[Any]],
        controls: frozenset[str],
        held: frozenset[str],
        first: Mapping[str, dict[str, Any]],
        files: IntervalFiles,
        tasks: int,
        drains: bool,
        interval_s: float,
        host: str,
        check: Callable[[], None],
    ) -> None:
        self._logs: Final = logs
        self._controls: Final = controls
        self._held: Final = held
        self._first: Final = first
        self._files: Final = files
        self._tasks: Final = tasks
        self._drains: Final = drains
        self._interval_s: Final = interval_s
        self._check: Final = check
        self._server: Final = socket.create_server((host, 0), backlog=4 * tasks)
        port: int = self._server.getsockname()[1]
        self.address: Final = CoordinatorAddress(host, port, secrets.token_hex(_SECRET_BYTES))
        self.error: Exception | None = None
        self._number = -1
        self._attempt: _Attempt | None = None
        self._recorded: Interval | None = None
        self._positions: dict[str, dict[str, Any]] = {}
        self._read_before: Mapping[str, dict[str, Any]] | None = None
        self._after: Mapping[str, dict[str, Any]] = {}
        self._hastens = False
        # Data waits in the first interval for what control streams hold by then.
        self._awaits_history = True
        self._lock: Final = threading.Lock()
        self._selector: Final = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self._thread: Final = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def __enter__(self) -> Self:
        self._files.prepare()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join()
        for one in (self._server, self._wake, self._woken):
            one.close()

    def begin(self, number: int) -> None:
        """Begin an interval, in Spark's numbering. Its tasks come afterwards."""
        with self._lock:
            self._drop()
            self._number = number
            self._hastens = False
            self._recorded = self._files.read(number)
            # A power loss may undo the commit of the last interval, but not that of the one before it.
            if self._read_before is not None:
                for name, log in self._logs.items():
                    log.forget(log.decode(self._read_before[name]))
            self._read_before = self._positions or None
            self._positions = self._files.positions_before(number, self._first)

    def ends(self) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
        """Return where each stream stands after the last interval, and its newest end if known, as offsets."""
        after = self._after
        newest = {name: log.newest() for name, log in self._logs.items()}
        return {
            name: (after[name], None if newest[name] is None else log.encode(newest[name]))
            for name, log in self._logs.items()
            if name in after
        }

    def hasten(self) -> None:
        """End the interval now."""
        self._hastens = True
        self._wake.send(b"\0")

    def _run(self) -> None:
        try:
            self._coordinate()
        except Exception as e:  # the run ends with whatever it is
            self.error = e
        finally:
            with self._lock:
                self._drop()

    def _coordinate(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._woken:
                    self._woken.recv(1 << 10)
                    continue
                with self._lock:
                    if key.fileobj is self._server:
                        self._accept()
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._hear(key.fileobj)
            with self._lock:
                self._step()

    def _wait_s(self) -> float | None:
        attempt = self._attempt
        return None if attempt is None or not attempt.has_begun or attempt.has_ended else _LOOK_S

    def _accept(self) -> None:
        one, _ = self._server.accept()
        one.settimeout(GREETING_TIMEOUT_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(one, selectors.EVENT_READ)

    def _hear(self, one: socket.socket) -> None:
        """Carry out what a task says."""
        try:
            is_known = self._attempt is not None and one in self._attempt.sockets.values()
            message = receive(one, _decoder, None if is_known else MAX_GREETING_BYTES)
        except (OSError, msgspec.DecodeError):
            self._lose(one)
            return
        if isinstance(message, Hello):
            self._join(one, message)
        elif self._attempt is not None and one in self._attempt.sockets.values():
            task = next(task for task, found in self._attempt.sockets.items() if found is one)
            self._hear_from(self._attempt, task, message)

    def _hear_from(self, attempt: _Attempt, task: int, message: CaughtUp | Busy | Done) -> None:
        if isinstance(message, CaughtUp):
            self._catch_up(attempt, task)
        elif isinstance(message, Busy):
            attempt.ends_at_s = min(attempt.ends_at_s, time.monotonic() + self._interval_s)
        else:
            attempt.done[task] = message
            if len(attempt.done) == self._tasks:
                self._complete(attempt)

    def _join(self, one: socket.socket, hello: Hello) -> None:
        if not knows_secret(hello, self.address.secret) or hello.number != self._number:
            self._forget(one)
            return
        if self._attempt is not None and (hello.task in self._attempt.sockets or self._attempt.has_begun):
            # Spark runs a task again. What the others have done belongs to the first attempt.
            self._drop()
        if self._attempt is None:
            positions = {name: log.decode(self._positions[name]) for name, log in self._logs.items()}
            self._attempt = _Attempt(positions)
        one.settimeout(_SEND_TIMEOUT_S)
        self._attempt.sockets[hello.task] = one
        self._attempt.hellos[hello.task] = hello
        if len(self._attempt.sockets) == self._tasks:
            self._go(self._attempt)

    def _go(self, attempt: _Attempt) -> None:
        """Let the tasks begin."""
        peers = [attempt.hellos[task].address for task in range(self._tasks)]
        follows, ends = self._follows(attempt)
        attempt.awaits_history = self._awaits_history and self._recorded is None
        for task, one in attempt.sockets.items():
            own = self._of_task(ends, task)
            controls = {stream: found for stream, found in own.items() if stream in self._controls}
            history = controls if attempt.awaits_history else None
            log = None if self._recorded is None else self._recorded.tasks[task]
            until = own if self._drains else None
            self._tell(one, Go(peers, self._of_task(follows, task), history, until, log))
        attempt.has_begun = True
        if attempt.awaits_history or (self._drains and self._recorded is None):
            self._push(attempt, history=True)

    def _of_task(self, found: Mapping[str, Mapping[int, int]], task: int) -> dict[str, dict[int, int]]:
        """Return the partitions that a task follows."""
        return {
            stream: {number: at for number, at in starts.items() if number % self._tasks == task}
            for stream, starts in found.items()
        }

    def _catch_up(self, attempt: _Attempt, task: int) -> None:
        """Let data streams be read once all slots know what control streams held at the start."""
        attempt.caught_up.add(task)
        if len(attempt.caught_up) == self._tasks:
            attempt.awaits_history = self._awaits_history = False
            for one in attempt.sockets.values():
                self._tell(one, StartData())

    def _follows(self, attempt: _Attempt) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Return the partitions to follow, by stream, and their present ends.

        Partitions that a topic has got since the last interval are new.
        """
        found: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        for name, log in self._topics():
            before = attempt.positions[name]
            ahead = log.latest(before, limited=False)
            new = {number: at for number, at in ahead.items() if number not in before}
            found[name] = attempt.positions[name] = {**before, **new}
            ends[name] = dict(ahead)
        return found, ends

    def _topics(self) -> Iterator[tuple[str, KafkaLog]]:
        for name, log in self._logs.items():
            if isinstance(log, KafkaLog) and name not in self._held:
                yield name, log

    def _step(self) -> None:
        """Push what is new, and end the interval when it is time."""
        attempt = self._attempt
        if attempt is None or not attempt.has_begun or attempt.has_ended:
            return
        if self._recorded is None:
            self._push(attempt)
        # The end would let data be read before the slots have caught up.
        drains = self._drains and not attempt.awaits_history
        ends = self._recorded is not None or drains or self._hastens
        if ends or time.monotonic() >= attempt.ends_at_s:
            attempt.has_ended = True
            for one in attempt.sockets.values():
                self._tell(one, End())

    def _push(self, attempt: _Attempt, *, history: bool = False) -> None:
        """Give the tasks what is new in logs that are not topics; with `history`, all of it, and that this is all."""
        for index, (name, log) in enumerate(self._logs.items()):
            waits = name not in self._controls and attempt.awaits_history and not self._drains
            if isinstance(log, KafkaLog) or name in self._held or waits:
                continue
            before = attempt.positions[name]
            position = log.latest(before, limited=not history)
            if position != before:
                attempt.positions[name] = position
                # One task reads all of a log, since tasks do not wait for each other and records keep their order.
                reader = attempt.sockets[index % self._tasks]
                self._tell(reader, Push(name, Reading.of(log.splits(before, position, 1))))
            if history:
                for one in attempt.sockets.values():
                    self._tell(one, Push(name, None))

    def _complete(self, attempt: _Attempt) -> None:
        """Write what the tasks did, and let them commit."""
        for done in attempt.done.values():
            for stream, positions in done.positions.items():
                attempt.positions[stream] = {**attempt.positions[stream], **positions}
        encoded = {name: log.encode(attempt.positions[name]) for name, log in self._logs.items()}
        logs = [attempt.done[task].log for task in range(self._tasks)]
        if self._recorded is None:
            self._check()
            self._files.write(self._number, Interval({**self._positions, **encoded}, logs))
        self._after = encoded if self._recorded is None else self._recorded.positions
        for one in attempt.sockets.values():
            self._tell(one, Commit())

    def _tell(self, one: socket.socket, message: msgspec.Struct) -> None:
        # A task that is gone is noticed when its connection is read.
        with contextlib.suppress(OSError):
            send(one, message)

    def _lose(self, one: socket.socket) -> None:
        """A task is gone. Unless all were done, Spark runs the others again, too."""
        attempt = self._attempt
        self._forget(one)
        if attempt is not None and one in attempt.sockets.values() and len(attempt.done) < self._tasks:
            self._drop()

    def _drop(self) -> None:
        """Give up the attempt: its tasks end, and Spark runs them again."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            for one in attempt.sockets.values():
                self._forget(one)

    def _forget(self, one: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        one.close()
