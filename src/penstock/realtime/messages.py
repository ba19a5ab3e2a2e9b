"""Messages between the coordinator of a job, the engines of its slots, and Spark's tasks."""

from __future__ import annotations

import contextlib
import hmac
import socket
import time
from collections.abc import Iterable
from typing import Any, BinaryIO, Final, Self, TypeAlias

import msgspec

from penstock.metrics.source_times import SourceTimes
from penstock.sources.base import Split

__all__ = [
    "GREETING_TIMEOUT_S",
    "HISTORY",
    "MAX_GREETING_BYTES",
    "Attached",
    "Attend",
    "Bundle",
    "Busy",
    "Carry",
    "CaughtUp",
    "Commit",
    "Content",
    "Done",
    "End",
    "Failed",
    "FromCoordinator",
    "FromEngine",
    "Go",
    "Hello",
    "Joined",
    "Launch",
    "Outcome",
    "Push",
    "Put",
    "Range",
    "Read",
    "Reading",
    "Round",
    "StartData",
    "TaskLog",
    "ToCoordinator",
    "ToTask",
    "connect",
    "hang_up",
    "knows_secret",
    "now_ms",
    "receive",
    "receive_from",
    "receive_greeting",
    "send",
]

MAX_GREETING_BYTES: Final = 4096
"""The size limit of the first message of a connection, from a peer that is not known yet."""
GREETING_TIMEOUT_S: Final = 2.0
"""How long that message may take, in seconds, where nothing else is heard meanwhile."""

HISTORY: Final = -1
"""Instead of a level: the history of a control stream has ended."""

_LENGTH_BYTES: Final = 4
_CLOSED: Final = "the other side has closed the connection"
_CONNECT_TIMEOUT_S: Final = 30.0


class Range(msgspec.Struct, array_like=True, frozen=True):
    """A split as plain values."""

    partition: str
    path: str
    start: int
    end: int
    content: bytes | None = None


class Reading(msgspec.Struct, array_like=True, frozen=True):
    """The chunks that a task has read of a stream in one go, and the time, in milliseconds since 1970."""

    now_ms: int
    ranges: list[Range]

    @classmethod
    def of(cls, splits: Iterable[Split]) -> Self:
        """Return a reading of splits that are read now."""
        ranges = [Range(one.partition, one.path, one.start, one.end, one.content) for one in splits]
        return cls(now_ms(), ranges)

    @property
    def splits(self) -> list[Split]:
        """The splits that were read."""
        return [Split(one.partition, one.path, one.start, one.end, one.content) for one in self.ranges]


class Round(msgspec.Struct, array_like=True, frozen=True):
    """One round of a slot: how many bundles of each sender it has processed, at which level and time.

    With `at_end`, these are the bundles for the end of the interval.
    """

    level: int
    now_ms: int
    taken: dict[str, int]
    at_end: bool = False


class TaskLog(msgspec.Struct):
    """The work of a task in an interval, so that it can be repeated exactly: its readings by stream, and its rounds."""

    readings: dict[str, list[Reading]] = {}
    rounds: list[Round] = []


class Attend(msgspec.Struct, tag=True, frozen=True):
    """Spark has started a task for an interval."""

    token: str
    number: int
    task: int


class Launch(msgspec.Struct, tag=True, frozen=True):
    """The task is to launch the engine of its slot, for a session. `version` is that of its writes."""

    session: int
    version: int


class Attached(msgspec.Struct, tag=True, frozen=True):
    """The engine of the slot is alive; the task finds it at `address`."""

    address: tuple[str, int]


class Hello(msgspec.Struct, tag=True, frozen=True):
    """An engine has connected. Other engines find it at `address`, tasks at `desk`."""

    token: str
    session: int
    task: int
    address: tuple[str, int]
    desk: tuple[str, int]


class Done(msgspec.Struct, tag=True, frozen=True):
    """An engine has processed the whole interval; `positions` are those of its partitions at the end, by stream.

    Partitions of deleted topics are left out once their loss is reported.
    """

    log: TaskLog
    positions: dict[str, dict[str, int]]


class Go(msgspec.Struct, tag=True, frozen=True):
    """All engines have connected. `log` has the work to repeat if the interval is repeated.

    `follows` has the partitions that the engine follows, by stream, and their first offsets; `gone` those of deleted
    topics, with the offsets that were not read, as far as they are known. With `history`, which has the ends of control
    partitions by stream, data waits for the message `StartData`. With `until`, which has the ends of all partitions,
    the engine reads up to there and no further.
    """

    peers: list[tuple[str, int]]
    follows: dict[str, dict[str, int]]
    history: dict[str, dict[str, int]] | None = None
    until: dict[str, dict[str, int]] | None = None
    log: TaskLog | None = None
    gone: dict[str, dict[str, tuple[int, int]]] = {}


class Push(msgspec.Struct, tag=True, frozen=True):
    """A range of a stream that the engine is to read; without one, the end of the history of a control stream."""

    stream: str
    reading: Reading | None


class CaughtUp(msgspec.Struct, tag=True, frozen=True):
    """The slot has processed the history of all control streams."""


class Busy(msgspec.Struct, tag=True, frozen=True):
    """The slot has its first work of an interval, so the interval must end some time."""

    number: int


class StartData(msgspec.Struct, tag=True, frozen=True):
    """All slots have caught up, so data streams may be read."""


class End(msgspec.Struct, tag=True, frozen=True):
    """The interval ends: later reads belong to the next one. After the last one nothing more is read.

    `version` is that of what the next one writes.
    """

    is_last: bool
    version: int


class Commit(msgspec.Struct, tag=True, frozen=True):
    """What the engines did in the interval is on disk, so sinks may make it visible."""


class Carry(msgspec.Struct, tag=True, frozen=True):
    """The task of an interval has connected, to read stored state for the engine and to carry its outcome to Spark."""

    token: str
    number: int


class Read(msgspec.Struct, tag=True, frozen=True):
    """The engine needs a stored entry of a step."""

    step_id: str
    name: str


class Content(msgspec.Struct, tag=True, frozen=True):
    """A stored entry; None if it does not exist."""

    content: bytes | None


class Put(msgspec.Struct, tag=True, frozen=True):
    """An entry of a step to store; None removes it."""

    step_id: str
    name: str
    content: bytes | None


class Outcome(msgspec.Struct, tag=True, frozen=True):
    """The end of the entries to store, with the reports for the driver, as an Arrow stream."""

    reports: bytes


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine has failed. `is_cause` is false if it has only lost another engine."""

    error: str
    is_cause: bool


class Joined(msgspec.Struct, tag=True, frozen=True):
    """The first message of a connection between engines. With `waits` it has what readers send."""

    token: str
    waits: bool


class Bundle(msgspec.Struct, tag=True, frozen=True):
    """Packed rows of a sender for a level. The end of the sender's rows has None instead.

    `through` is the last level whose output has ended; 0 for what is read, and HISTORY for the end of the history of a
    control stream, after which more follows. Rows with `at_end` are processed after all others of the interval. `times`
    are those of the records that caused the rows, for metrics only.
    """

    sender: str
    interval: int
    level: int
    rows: list[tuple[str, int, int, str, int, bytes]] | None
    through: int = 0
    at_end: bool = False
    times: SourceTimes | None = None


ToCoordinator: TypeAlias = Attend | Hello | CaughtUp | Busy | Done
ToTask: TypeAlias = Launch | Attached
FromCoordinator: TypeAlias = Go | Push | StartData | End | Commit
FromEngine: TypeAlias = Read | Put | Outcome | Failed
_encoder: Final = msgspec.msgpack.Encoder()


def now_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def knows_secret(message: Attend | Hello | Joined | Carry, secret: str) -> bool:
    """Return whether the first message of a connection is from a task of the run."""
    return hmac.compare_digest(message.token.encode(), secret.encode())


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to the coordinator or to an engine."""
    one = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def hang_up(one: socket.socket) -> None:
    """Close a socket, and wake the thread that waits for it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def send(to: socket.socket, message: msgspec.Struct) -> None:
    """Send a message."""
    body = _encoder.encode(message)
    to.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def receive(
    origin: socket.socket, decoder: msgspec.msgpack.Decoder[Any], max_bytes: int | None = None
) -> Any:
    """Receive a message. Raises ConnectionError when the other side is gone, or sends more than `max_bytes`."""
    size = int.from_bytes(_receive(origin, _LENGTH_BYTES), "big")
    if max_bytes is not None and size > max_bytes:
        raise ConnectionError(f"a message of {size:,} bytes is too large")
    return decoder.decode(_receive(origin, size))


def receive_from(stream: BinaryIO, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """Receive a message as `receive` does, from a buffer: most messages take one call of the system.

    After each call a thread has to wait for the interpreter, which other threads of the engine may be using.
    """
    size = stream.read(_LENGTH_BYTES)
    body = stream.read(int.from_bytes(size, "big"))
    if len(size) < _LENGTH_BYTES or len(body) < int.from_bytes(size, "big"):
        raise ConnectionError(_CLOSED)
    return decoder.decode(body)


def receive_greeting(
    one: socket.socket,
    decoder: msgspec.msgpack.Decoder[Any],
    secret: str,
    timeout_s: float = GREETING_TIMEOUT_S,
) -> Any | None:
    """Receive the first message of a connection. Return None for a stranger, and for one that is closed meanwhile."""
    try:
        one.settimeout(timeout_s)
        message = receive(one, decoder, MAX_GREETING_BYTES)
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, msgspec.DecodeError):
        return None
    return message if knows_secret(message, secret) else None


def _receive(origin: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while left:
        part = origin.recv(min(left, 1 << 20))
        if not part:
            raise ConnectionError(_CLOSED)
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
