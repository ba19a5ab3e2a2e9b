"""RabbitMQ streams: each message is journaled with its offset, after which reading resumes after a restart."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeVar

from rstream import AMQPMessage, schema
from rstream.client import Client
from rstream.connection import ConnectionClosed
from rstream.constants import OffsetType
from rstream.exceptions import (
    AccessRefused,
    AuthenticationFailure,
    LeaderNotAvailable,
    SASLAuthenticationFailureLoopback,
    ServerError,
    StreamAlreadyExists,
    StreamDoesNotExist,
    StreamNotAvailable,
    VirtualHostAccessFailure,
)

from penstock.bindings.types import RabbitStreamBinding
from penstock.errors import BindingError, JobFailedError
from penstock.rabbitmq.amqp_body import message_body
from penstock.rabbitmq.rabbitmq_problems import Problems, password_of
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import Group, Receiver

__all__ = ["StreamReceiver", "check_stream", "publish_to_stream"]

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_CLOSE_S: Final = 2.0
_ALIVE_S: Final = 10.0
_PATIENCE_S: Final = 30.0
_FRAME_BYTES: Final = 1 << 20
_HEARTBEAT_S: Final = 60
_CHUNKS_AHEAD: Final = 10
_MAX_RECORDS: Final = 50_000
_READING: Final = 0
_PROBE: Final = 1
_PUBLISHING: Final = 0
_OFFSET: Final = struct.Struct("<q")
_log: Final = logging.getLogger("penstock.sources")

_T = TypeVar("_T")


def check_stream(binding: RabbitStreamBinding) -> None:
    """Check that the broker answers and has the stream; create it if the binding says so.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    with _StreamConnection(binding) as connection, suppress(OSError):
        # A stream that was just created may not be ready. This also checks that the stream may be read.
        connection.end()


def publish_to_stream(binding: RabbitStreamBinding, body: bytes) -> None:
    """Publish one message, and wait until the broker has it.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    try:
        with _StreamConnection(binding) as connection:
            connection.publish(body)
    except ConnectionError as e:
        raise Problems(binding).unreachable(e) from e


class StreamReceiver(Receiver["_StreamConnection"]):
    """A receiver of the messages of a stream.

    The journal holds the offset of each message, so that after a restart reading resumes after the last durable
    message. The end from which `start=latest` begins is journaled as well. A bounded run ends with the message that was
    the last when the connection was made.
    """

    def __init__(
        self, binding: RabbitStreamBinding, journal: JournalWriter, *, bounded: bool = False
    ) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        self._durable = behind_last_offset(journal.notes())
        self._newest: _Chunk | None = None
        self._behind_since_s: float | None = None

    def _connect(self) -> _StreamConnection:
        connection = _StreamConnection(self._binding)
        if self._durable is None:
            # From now on the job counts as started, and no message that comes may be missed.
            try:
                self._begin(connection)
            except ConnectionError as e:
                connection.close()
                raise Problems(self._binding).unreachable(e) from e
            except BaseException:
                connection.close()
                raise
        return connection

    def _begin(self, connection: _StreamConnection) -> None:
        """Keep the start, so that messages that come before the first is journaled are not skipped."""
        start = connection.first() if self._binding.start == "earliest" else connection.end()
        self._journal.append([], _OFFSET.pack(start - 1))
        self._durable = start

    def _receive(self, connection: _StreamConnection) -> None:
        end = connection.end()
        first = connection.first()
        if self._newest is not None and not connection.still_has(self._newest):
            raise Problems(self._binding).created_again(self._newest.offset + 1)
        position = self._kept(first, self._resume_at(end))
        if self._bounded and position >= end:
            return
        group = Group(self._journal, _MAX_RECORDS)
        connection.subscribe(position)
        while not self._stopping.is_set() and not (self._bounded and position >= end):
            for offset, message in connection.messages(group.wait_s):
                # Chunks are sent whole, even when reading begins or ends within them.
                if offset >= position and not (self._bounded and offset >= end):
                    group.add(message_body(message), _OFFSET.pack(offset))
                    position = offset + 1
                    self._newest = connection.chunk(offset)
            if not group.wait_s:
                group.commit()
                self._durable = position
        group.commit()
        self._durable = position

    def _kept(self, first: int, position: int) -> int:
        """Return a position, or the first that the stream still has if it has deleted what comes before.

        Raises RecordsLostError unless the binding says to continue.
        """
        if first <= position:
            return position
        problem = Problems(self._binding).deleted(position, first)
        if self._binding.missing != "skip":
            raise problem
        _log.warning("%s The stream continues.", problem, extra={"stream": self._stream})
        self._journal.append([], _OFFSET.pack(first - 1))
        self._durable = first
        return first

    def _resume_at(self, end: int) -> int:
        """Return the offset after what is in the journal. Raises an error if the stream ends before it."""
        assert self._durable is not None
        if end >= self._durable:
            self._behind_since_s = None
            return self._durable
        # A replica that was just started may be behind for a while.
        self._behind_since_s = self._behind_since_s or time.monotonic()
        problem = Problems(self._binding).began_again(end, self._durable)
        if time.monotonic() < self._behind_since_s + _PATIENCE_S:
            raise problem
        raise BindingError(str(problem))


def behind_last_offset(notes: Iterable[bytes]) -> int | None:
    """Return the offset after the last in the journal, by its notes, or None for an empty journal."""
    note = next(iter(notes), None)
    return None if note is None else int(_OFFSET.unpack_from(note, len(note) - _OFFSET.size)[0]) + 1


class _Chunk(NamedTuple):
    """A chunk that has the message at an offset: the offset of its first message, and the broker's time for it."""

    offset: int
    first: int
    timestamp: int


class _StreamConnection:
    """A connection to a stream, with its own event loop that runs only inside its methods; a context manager.

    Creating one raises the errors of `Problems`; everything else raises ConnectionError when the connection is lost.
    """

    def __init__(self, binding: RabbitStreamBinding) -> None:
        self._binding = binding
        self._problems = Problems(binding)
        self._clients: list[Client] = []
        self._frames: list[schema.Deliver] = []
        self._unpacked: schema.Deliver | None = None
        self._failure = ""
        self._came = asyncio.Event()
        self._came_s = time.monotonic()
        self._loop = asyncio.new_event_loop()
        # Failures of the client's tasks are otherwise only written to standard error.
        self._loop.set_exception_handler(lambda _, what: self._fail(what.get("exception") or what["message"]))
        try:
            self._loop.run_until_complete(self._open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def end(self) -> int:
        """Return the offset after the last message that is in the stream now."""
        found = self._run(self._probe(schema.OffsetSpec.from_params(OffsetType.LAST, None)))
        return 0 if found is None else int(found.chunk_first_offset + found.num_records)

    def first(self) -> int:
        """Return the offset of the first message that the stream still has; 0 if it has none."""
        found = self._run(self._probe(schema.OffsetSpec.from_params(OffsetType.FIRST, None)))
        return 0 if found is None else int(found.chunk_first_offset)

    def chunk(self, offset: int) -> _Chunk:
        """Return the chunk of the message that was passed on last, which is at an offset."""
        assert self._unpacked is not None
        return _Chunk(offset, self._unpacked.chunk_first_offset, self._unpacked.timestamp)

    def still_has(self, chunk: _Chunk) -> bool:
        """Return whether a chunk is where it was; True as well if the stream has deleted it."""
        spec = schema.OffsetSpec.from_params(OffsetType.OFFSET, chunk.offset)
        found = self._run(self._probe(spec))
        if found is None or found.chunk_first_offset > chunk.offset:
            return True
        return bool((found.chunk_first_offset, found.timestamp) == (chunk.first, chunk.timestamp))

    def subscribe(self, offset: int) -> None:
        """Have the broker send what is in the stream from an offset on."""
        self._run(self._subscribe(_READING, schema.OffsetSpec.from_params(OffsetType.OFFSET, offset)))

    def publish(self, body: bytes) -> None:
        """Publish one message; return when the broker has confirmed it."""
        self._run(asyncio.wait_for(self._publish(bytes(AMQPMessage(body=body))), _ANSWER_S))

    def messages(self, timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that have arrived, with their offsets; wait for them when there are none yet."""
        self._run(self._wait(timeout_s))
        frames, self._frames = self._frames, []
        for frame in frames:
            self._unpacked = frame
            yield from enumerate(self._unpack(frame), frame.chunk_first_offset)
        if frames:
            self._came_s = time.monotonic()
            self._run(self._clients[-1].credit(_READING, len(frames)))

    def _unpack(self, frame: schema.Deliver) -> list[bytes]:
        try:
            return frame.get_messages()
        except Exception as e:  # the client raises anything here
            raise JobFailedError(
                f"Stream {self._binding.stream!r}: the messages at offset {frame.chunk_first_offset} of the stream "
                f"{self._binding.name!r} cannot be unpacked ({e}). Messages may be batched plainly or with gzip; the "
                "program that publishes them must not use another compression."
            ) from e

    async def _open(self) -> None:
        host = self._binding.virtual_host
        try:
            client = await asyncio.wait_for(self._connect(host.host, host.port), _CONNECT_S)
            if not await client.stream_exists(self._binding.name):
                await self._create(client)
        except (AuthenticationFailure, SASLAuthenticationFailureLoopback):
            raise self._problems.login_refused() from None
        except VirtualHostAccessFailure:
            raise self._problems.no_virtual_host() from None
        except TimeoutError:
            raise self._problems.unreachable("no answer in the stream protocol") from None
        except (OSError, ConnectionClosed) as e:
            raise self._problems.unreachable(e) from e
        except ServerError as e:
            raise self._problems.refused(type(e).__name__) from e

    async def _create(self, client: Client) -> None:
        if not self._binding.create:
            raise self._problems.missing()
        with suppress(StreamAlreadyExists):
            await client.create_stream(self._binding.name)

    async def _connect(self, address: str, port: int) -> Client:
        """Return a client that is logged in and passes what is delivered to this connection."""
        host = self._binding.virtual_host
        client = Client(
            address,
            port,
            frame_max=_FRAME_BYTES,
            heartbeat=_HEARTBEAT_S,
            connection_name=f"penstock {self._binding.stream}",
        )
        self._clients.append(client)
        await client.start()
        await client.authenticate(host.name, host.user, password_of(self._binding))
        client.add_handler(schema.Deliver, self._take, name=str(_READING))
        client.add_handler(schema.MetadataUpdate, self._on_moved, name="moved")
        await client.run_queue_listener_task(_READING, self._take)
        return client

    async def _take(self, frame: schema.Deliver) -> None:
        self._frames.append(frame)
        self._came.set()

    async def _on_moved(self, _: schema.MetadataUpdate) -> None:
        self._fail("the stream was moved or deleted")

    def _fail(self, reason: object) -> None:
        self._failure = str(reason) or type(reason).__name__
        self._came.set()

    async def _probe(self, place: schema.OffsetSpec) -> schema.Deliver | None:
        """Return the chunk at a position, or None."""
        await self._subscribe(_PROBE, place, credit=1)
        # The broker sends the chunk before it handles the next request, so with the answer the chunk is here.
        client = self._clients[-1]
        await client.unsubscribe(_PROBE)
        await client.stream_exists(self._binding.name)
        await asyncio.sleep(0)
        found = [frame for frame in self._frames if frame.subscription_id == _PROBE]
        self._frames.clear()
        return found[-1] if found else None

    async def _subscribe(self, number: int, start: schema.OffsetSpec, credit: int = _CHUNKS_AHEAD) -> None:
        name = self._binding.name
        try:
            await self._clients[-1].subscribe(name, number, start, credit)
        except (StreamNotAvailable, StreamDoesNotExist):
            # The node has no replica of the stream; its leader is elsewhere.
            leader, _ = await self._clients[-1].query_leader_and_replicas(name)
            client = await asyncio.wait_for(self._connect(leader.host, leader.port), _CONNECT_S)
            await client.subscribe(name, number, start, credit)

    async def _publish(self, message: bytes) -> None:
        answer: asyncio.Future[int] = self._loop.create_future()

        def confirmed(_: schema.PublishConfirm) -> None:
            if not answer.done():
                answer.set_result(0)

        def refused(frame: schema.PublishError) -> None:
            if not answer.done():
                answer.set_result(frame.errors[0].response_code)

        try:
            await self._declare_publisher(self._clients[-1])
        except (StreamNotAvailable, StreamDoesNotExist):
            # The node has no replica of the stream; its leader is elsewhere.
            leader, _ = await self._clients[-1].query_leader_and_replicas(self._binding.name)
            await asyncio.wait_for(self._connect(leader.host, leader.port), _CONNECT_S)
            await self._declare_publisher(self._clients[-1])
        client = self._clients[-1]
        client.add_handler(schema.PublishConfirm, confirmed, name="confirmed")
        client.add_handler(schema.PublishError, refused, name="refused")
        await client.publish([schema.Message(0, None, message)], _PUBLISHING)
        code = await answer
        if code:
            raise self._problems.refused(f"the message is not accepted, code {code}")

    async def _declare_publisher(self, client: Client) -> None:
        await client.declare_publisher(self._binding.name, None, _PUBLISHING)

    async def _wait(self, timeout_s: float) -> None:
        client = self._clients[-1]
        if not self._frames and time.monotonic() > self._came_s + _ALIVE_S:
            # A broker whose machine is gone says nothing, so ask it now and then.
            await client.stream_exists(self._binding.name)
            self._came_s = time.monotonic()
        if not self._frames:
            self._came.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), timeout_s)
        if self._failure or not client.is_connection_alive():
            raise ConnectionError(self._failure or "the broker ended the connection")

    def _run(self, awaitable: Coroutine[Any, Any, _T]) -> _T:
        """Run until it is done, and raise the client's errors as ConnectionError."""
        try:
            return self._loop.run_until_complete(awaitable)
        except AccessRefused:
            raise self._problems.refused("access refused") from None
        except (ServerError, LeaderNotAvailable, ConnectionClosed, TimeoutError) as e:
            raise ConnectionError(str(e) or type(e).__name__) from e

    def close(self) -> None:
        """End the connection."""
        with suppress(Exception):  # it is given up anyway
            self._loop.run_until_complete(asyncio.wait_for(self._close_clients(), _CLOSE_S))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.close()
