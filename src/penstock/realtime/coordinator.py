"""The coordinator: begins and ends the intervals of a job in the driver, and makes their work durable.

Its sessions are engines, one for each slot, that continue from one interval to the next. A new session begins with the
first interval, with a repeated one, and with the first one after a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec

from penstock.realtime.coordinator_links import CheckpointLinks, CoordinatedStreams
from penstock.realtime.interval_files import Interval, IntervalFiles
from penstock.realtime.messages import (
    GREETING_TIMEOUT_S,
    MAX_GREETING_BYTES,
    Attached,
    Attend,
    Busy,
    CaughtUp,
    Commit,
    Done,
    End,
    Go,
    Hello,
    Launch,
    Push,
    Reading,
    StartData,
    ToCoordinator,
    hang_up,
    knows_secret,
    receive,
    send,
)
from penstock.realtime.partition_owners import PartitionOwners
from penstock.realtime.slot_engine import CoordinatorAddress
from penstock.realtime.topic_growth import TopicGrowth
from penstock.sources.kafka_log import KafkaLog

__all__ = ["Coordinator"]

# How often logs that are not topics are looked at for new records.
_LOOK_S: Final = 0.04
_SEND_TIMEOUT_S: Final = 30.0
_SECRET_BYTES: Final = 24

_decoder: Final = msgspec.msgpack.Decoder(ToCoordinator)
_T = TypeVar("_T")


@dataclass
class _Session:
    """The engines of all slots, `size` of them, from the interval in which they were launched on.

    `positions` are those after the ranges that were pushed, in the form of the logs, and `cut` those at the end of the
    present interval; the positions of topics are known once engines are done. `owners` says which engine has which
    partitions, by stream.
    """

    id: int
    size: int
    interval: int
    positions: dict[str, Any]
    owners: dict[str, dict[str, int]] = field(default_factory=dict)
    tasks: set[int] = field(default_factory=set)
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    hellos: dict[int, Hello] = field(default_factory=dict)
    caught_up: set[int] = field(default_factory=set)
    awaits_history: bool = False
    done: dict[int, Done] = field(default_factory=dict)
    has_begun: bool = False
    # When each interval had its first work. One without work does not end; engines may be ahead, in the next one.
    busy_s: dict[int, float] = field(default_factory=dict)
    cut: dict[str, Any] | None = None
    cut_s: float = 0.0
    # After its present interval a new session begins, for example with new partitions of a topic.
    is_last: bool = False

    @property
    def has_all_tasks(self) -> bool:
        """Whether all tasks of the present interval have connected."""
        return len(self.tasks) == self.size


class Coordinator:
    """The coordinator of a job. `error` is the error that keeps an interval from ending.

    Use it as a context manager. Spark's thread calls `begin`, any thread `finish`.

    Args:
        streams: the streams of the job.
        files: the files of intervals.
        checkpoint: the links to the checkpoint.
        tasks: the number of tasks of an interval, and of engines.
        drains: whether an interval reads all present records and ends.
        interval_s: the length of an interval, counted from the first work of its engines.
        host: the address at which to listen.

    """

    def __init__(
        self,
        streams: CoordinatedStreams,
        files: IntervalFiles,
        checkpoint: CheckpointLinks,
        *,
        tasks: int,
        drains: bool,
        interval_s: float,
        host: str,
    ) -> None:
        self._streams: Final = streams
        self._logs: Final = streams.logs
        self._checkpoint: Final = checkpoint
        self._files: Final = files
        self._tasks: Final = tasks
        self._drains: Final = drains
        self._interval_s: Final = interval_s
        self._server: Final = socket.create_server((host, 0), backlog=4 * tasks)
        port: int = self._server.getsockname()[1]
        self.address: Final = CoordinatorAddress(host, port, secrets.token_hex(_SECRET_BYTES))
        self.error: Exception | None = None
        # When the last interval was cut and when it was durable, in seconds since 1970, for metrics.
        self.ended_s: tuple[float, float] | None = None
        self._number = -1
        self._session: _Session | None = None
        self._sessions: Final = itertools.count(1)
        self._recorded: Interval | None = None
        self._positions: dict[str, dict[str, Any]] = {}
        self._read_before: Mapping[str, dict[str, Any]] | None = None
        self._after: Mapping[str, dict[str, Any]] = {}
        self._finishes = False
        # In the first interval data waits until the control streams are read up to their ends at its start.
        self._awaits_history = True
        self._lock: Final = threading.Lock()
        self._selector: Final = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self._owners: Final = PartitionOwners(tasks)
        self._growth: Final = TopicGrowth(dict(self._topics()), self._look_again)
        self._thread: Final = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def __enter__(self) -> Self:
        self._files.prepare()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        self._growth.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._growth.close()
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join()
        for one in (self._server, self._wake, self._woken):
            one.close()

    def begin(self, number: int) -> None:
        """Begin an interval, by Spark's number. Its tasks connect afterwards."""
        with self._lock:
            self._number = number
            self._finishes = False
            self._recorded = self._files.read(number)
            session = self._session
            if session is not None and (
                session.interval != number or not session.has_begun or self._recorded is not None
            ):
                self._drop()
            # A power loss may undo the commit of the last interval, but not that of the one before it.
            if self._read_before is not None:
                for name, log in self._logs.items():
                    log.forget(log.decode(self._read_before[name]))
            self._read_before = self._positions or None
            self._positions = self._files.positions_before(number, self._streams.begins)

    def ends(self) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
        """Return the offset of each stream after the last interval, and its newest end if known."""
        after = self._after
        newest = {name: log.newest() for name, log in self._logs.items()}
        return {
            name: (after[name], None if newest[name] is None else log.encode(newest[name]))
            for name, log in self._logs.items()
            if name in after
        }

    @property
    def running_s(self) -> float:
        """For how many seconds the present interval has had work, for metrics; 0 while it waits for work."""
        session = self._session
        begun_s = None if session is None else session.busy_s.get(session.interval)
        return 0.0 if begun_s is None else time.monotonic() - begun_s

    def finish(self) -> None:
        """End the interval now, and the engines with it."""
        self._finishes = True
        self._wake.send(b"\0")

    def _look_again(self) -> None:
        # The report may come after the end.
        with contextlib.suppress(OSError):
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
        session = self._session
        return None if session is None or not session.has_begun or _is_over(session) else _LOOK_S

    def _accept(self) -> None:
        one, _ = self._server.accept()
        one.settimeout(GREETING_TIMEOUT_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(one, selectors.EVENT_READ)

    def _hear(self, one: socket.socket) -> None:
        """Handle a message of a task or an engine."""
        session = self._session
        is_known = session is not None and one in session.sockets.values()
        try:
            message: ToCoordinator = receive(one, _decoder, None if is_known else MAX_GREETING_BYTES)
        except (OSError, msgspec.DecodeError):
            self._lose(one)
            return
        if isinstance(message, Attend | Hello):
            if not knows_secret(message, self.address.secret):
                self._forget(one)
            elif isinstance(message, Attend):
                self._attend(one, message)
            else:
                self._join(one, message)
        elif session is not None and is_known:
            task = next(task for task, found in session.sockets.items() if found is one)
            self._hear_from(session, task, message)

    def _hear_from(self, session: _Session, task: int, message: CaughtUp | Busy | Done) -> None:
        if isinstance(message, CaughtUp):
            self._catch_up(session, task)
        elif isinstance(message, Busy):
            session.busy_s.setdefault(message.number, time.monotonic())
        else:
            session.done[task] = message
            if len(session.done) == self._tasks:
                self._complete(session)

    def _attend(self, one: socket.socket, message: Attend) -> None:
        """Tell a task the address of the engine of its slot, or to launch the engine."""
        if message.number == self._number:
            found = self._session
            if found is not None and (message.task in found.tasks or found.interval != message.number):
                # Spark runs the task again. The work of the other tasks belongs to the first attempt.
                self._drop()
            if self._session is None:
                self._recorded = self._files.read(message.number)
                positions = {name: log.decode(self._positions[name]) for name, log in self._logs.items()}
                self._session = _Session(next(self._sessions), self._tasks, message.number, positions)
            session = self._session
            assert session is not None
            session.tasks.add(message.task)
            known = session.hellos.get(message.task)
            self._tell(
                one,
                Launch(session.id, self._checkpoint.next_version())
                if known is None
                else Attached(known.desk),
            )
        self._forget(one)

    def _join(self, one: socket.socket, hello: Hello) -> None:
        session = self._session
        if session is None or hello.session != session.id or hello.task in session.hellos:
            self._forget(one)
            return
        one.settimeout(_SEND_TIMEOUT_S)
        session.sockets[hello.task] = one
        session.hellos[hello.task] = hello
        if len(session.sockets) == self._tasks:
            self._go(session)

    def _go(self, session: _Session) -> None:
        """Tell each engine its peers and partitions, so that it begins."""
        peers = [session.hellos[task].address for task in range(self._tasks)]
        follows, ends, gone = self._follows(session)
        for stream, found in follows.items():
            session.owners[stream] = self._owners.assign(stream, {*found, *gone[stream]})
        session.awaits_history = self._awaits_history and self._recorded is None
        for task, one in session.sockets.items():
            own = _of_task(session, ends, task)
            controls = {stream: found for stream, found in own.items() if stream in self._streams.controls}
            history = controls if session.awaits_history else None
            log = None if self._recorded is None else self._recorded.tasks[task]
            until = own if self._drains else None
            followed = _of_task(session, follows, task)
            self._tell(one, Go(peers, followed, history, until, log, _of_task(session, gone, task)))
        session.has_begun = True
        self._growth.follow(follows)
        if session.awaits_history or (self._drains and self._recorded is None):
            self._push(session, history=True)

    def _catch_up(self, session: _Session, task: int) -> None:
        """Let data streams be read once all slots have processed the history of the control streams."""
        session.caught_up.add(task)
        if len(session.caught_up) == self._tasks:
            session.awaits_history = self._awaits_history = False
            for one in session.sockets.values():
                self._tell(one, StartData())

    def _follows(self, session: _Session) -> _Follows:
        """Return the partitions to follow, by stream, their present ends, and those whose topics are gone.

        Partitions that have appeared since the last session are new.
        """
        found = _Follows({}, {}, {})
        for name, log in self._topics():
            before = session.positions[name]
            ahead = log.latest(before, limited=False)
            new = {one: at for one, at in ahead.items() if one not in before}
            session.positions[name] = {**before, **new}
            found.follows[name] = {**{one: at for one, at in before.items() if one in ahead}, **new}
            # `ahead` has the starts of new partitions; their ends become known at the next look.
            found.ends[name] = dict(log.latest(found.follows[name], limited=False) if new else ahead)
            found.gone[name] = log.gone(before, ahead)
        return found

    def _topics(self) -> Iterator[tuple[str, KafkaLog]]:
        for name, log in self._logs.items():
            if isinstance(log, KafkaLog) and name not in self._streams.held:
                yield name, log

    def _step(self) -> None:
        """Push new records, and end the interval when it is due."""
        session = self._session
        if session is None or not session.has_begun or _is_over(session):
            return
        if self._recorded is None:
            self._push(session)
        # The tasks of the interval carry its state and reports to Spark.
        if session.cut is None and session.interval == self._number and session.has_all_tasks:
            self._end(session)

    def _end(self, session: _Session) -> None:
        """End the interval if it is due."""
        # Ending now would let data be read before the slots have caught up.
        drains = self._drains and not session.awaits_history
        grows = self._growth.has_changed and not session.awaits_history
        is_last = self._recorded is not None or drains or self._finishes or grows
        if is_last or (self._is_over_time(session) and not session.awaits_history):
            session.is_last |= is_last
            session.cut = dict(session.positions)
            session.cut_s = time.time()
            end = End(session.is_last, self._checkpoint.next_version())
            for one in session.sockets.values():
                self._tell(one, end)

    def _is_over_time(self, session: _Session) -> bool:
        return time.monotonic() >= session.busy_s.get(session.interval, math.inf) + self._interval_s

    def _push(self, session: _Session, *, history: bool = False) -> None:
        """Push new ranges of logs other than topics to the engines; with `history`, push all of it, then its end."""
        for index, (name, log) in enumerate(self._logs.items()):
            waits = name not in self._streams.controls and session.awaits_history and not self._drains
            if isinstance(log, KafkaLog) or name in self._streams.held or waits:
                continue
            before = session.positions[name]
            position = log.latest(before, limited=not history)
            if position != before:
                session.positions[name] = position
                # One engine reads all of a log: records keep their order, and engines do not wait for each other.
                reader = session.sockets[index % self._tasks]
                self._tell(reader, Push(name, Reading.of(log.splits(before, position, 1))))
            if history:
                for one in session.sockets.values():
                    self._tell(one, Push(name, None))

    def _complete(self, session: _Session) -> None:
        """Write the work of the engines to disk, and let them commit."""
        assert session.cut is not None
        cut, session.cut = session.cut, None
        for task, done in session.done.items():
            for stream, positions in done.positions.items():
                owners = session.owners.get(stream, {})
                others = {name: at for name, at in cut[stream].items() if owners.get(name) != task}
                cut[stream] = session.positions[stream] = {**others, **positions}
        encoded = {name: log.encode(cut[name]) for name, log in self._logs.items()}
        logs = [session.done[task].log for task in range(self._tasks)]
        if self._recorded is None:
            self._checkpoint.check()
            self._files.write(session.interval, Interval({**self._positions, **encoded}, logs))
        self._checkpoint.confirm()
        self.ended_s = (session.cut_s, time.time())
        self._after = encoded if self._recorded is None else self._recorded.positions
        for one in session.sockets.values():
            self._tell(one, Commit())
        session.done.clear()
        session.tasks.clear()
        session.busy_s.pop(session.interval, None)
        session.interval += 1
        if session.is_last:
            # Its engines end once the tasks have received everything.
            self._drop()

    def _tell(self, one: socket.socket, message: msgspec.Struct) -> None:
        # A lost connection is noticed when it is read.
        with contextlib.suppress(OSError):
            send(one, message)

    def _lose(self, one: socket.socket) -> None:
        """Forget a connection that has ended. A session that loses an engine ends, and Spark runs its tasks again."""
        session = self._session
        self._forget(one)
        if session is not None and one in session.sockets.values():
            self._drop()

    def _drop(self) -> None:
        """Give up the session: its engines end, and Spark runs their tasks again."""
        session, self._session = self._session, None
        if session is not None:
            for one in session.sockets.values():
                self._forget(one)

    def _forget(self, one: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        hang_up(one)


class _Follows(NamedTuple):
    """The partitions to follow, by stream, their ends, and those whose topics are gone, with their unread ranges."""

    follows: dict[str, dict[str, int]]
    ends: dict[str, dict[str, int]]
    gone: dict[str, dict[str, tuple[int, int]]]


def _of_task(session: _Session, found: Mapping[str, Mapping[str, _T]], task: int) -> dict[str, dict[str, _T]]:
    """Return the items whose partitions the engine of a task has."""
    return {
        stream: {name: one for name, one in of_stream.items() if session.owners[stream][name] == task}
        for stream, of_stream in found.items()
    }


def _is_over(session: _Session) -> bool:
    """Return whether a session only has to complete its last interval."""
    return session.is_last and session.cut is not None
