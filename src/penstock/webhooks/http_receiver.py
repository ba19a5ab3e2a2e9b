"""HTTP receiver: a request is answered when its records are in the journal, not before."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvicorn

from penstock.bindings.secrets import has_files, resolve_setting
from penstock.bindings.types import HttpListenBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.records.event_headers import EventHeaders
from penstock.sources.journal import JournalWriter, journal_begin
from penstock.sources.journal_blocks import PackedRecords
from penstock.sources.receiver import IDLE_S, MAX_BYTES, Receiver
from penstock.sources.redelivery import JournaledMessages, message_digest
from penstock.webhooks.request_records import event_in_request, pack_records
from penstock.webhooks.server_certificate import ServerCertificate, check_certificate

__all__ = ["HttpReceiver", "find_token", "listen"]

_BACKLOG: Final = 1024
_UNDER_WAY_BYTES: Final = 64 << 20
_SOON_S: Final = 1
_LATER_S: Final = 10
_GRACE_S: Final = 5
# How old what was read of the file of a token may be.
_TOKEN_S: Final = 1.0
_log: Final = logging.getLogger("penstock.sources")


def find_token(binding: HttpListenBinding) -> str | None:
    """Return the token that requests must have; None if anybody may send. Raises BindingError when none can have it."""
    token: str | None = resolve_setting(binding.stream, binding.login, "token")
    if token is not None and re.search(r"[^!-~]", token):
        raise BindingError(
            f"Stream {binding.stream!r}: no request can have the token, since it has a space, a line break or a "
            "character outside ASCII. Correct the variable, the file or the URI."
        )
    return token


class _Token:
    """The token that requests must have. A file is read again now and then, since it may have another one by now."""

    def __init__(self, binding: HttpListenBinding) -> None:
        self._binding: Final = binding
        self._may_change: Final = has_files(binding.login)
        self._found = find_token(binding)
        self._read_s = time.monotonic()
        self._problem = ""

    def accepts(self, scheme: bytes, given: bytes) -> bool:
        """Return whether a request has it."""
        if self._may_change and time.monotonic() > self._read_s + _TOKEN_S:
            self._read_again()
        if self._found is None:
            return True
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._found.encode())

    def _read_again(self) -> None:
        self._read_s = time.monotonic()
        problem = ""
        try:
            self._found = find_token(self._binding)
        except BindingError as e:
            problem = str(e)
            # It may be on its way. Until then the last one counts, and never none.
            if problem != self._problem:
                _log.warning(
                    "%s The last token counts until then.", e, extra={"stream": self._binding.stream}
                )
        self._problem = problem


def listen(binding: HttpListenBinding) -> socket.socket:
    """Return a socket that listens where a binding says. Raises ExternalSystemError when that is not possible."""
    family = socket.AF_INET6 if ":" in binding.host else socket.AF_INET
    check_certificate(binding)
    try:
        listening = socket.create_server((binding.host, binding.port), family=family, backlog=_BACKLOG)
    except OSError as e:
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the job cannot listen at {binding.host}:{binding.port} ({e.strerror or e}). "
            "Stop what listens there, or choose another port or address of this machine in the URI."
        ) from e
    # Connections inherit it. Without it the end of an answer waits for the receipt of its head, which takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class HttpReceiver(Receiver[AbstractContextManager[Any]]):
    """A receiver of requests, as their server.

    What arrives at the same time becomes durable together. A request with an `Idempotency-Key` that comes again is
    skipped if it is among the last 100 000 such requests in the journal. A bounded run has the records that the journal
    has at its start, and does not listen. With `events`, requests may be CloudEvents with their attributes in headers.
    """

    def __init__(
        self,
        binding: HttpListenBinding,
        folder: Path,
        journal: JournalWriter,
        *,
        bounded: bool = False,
        events: EventHeaders | None = None,
    ) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        self._folder = folder
        self._events = events
        self._journaled = JournaledMessages(journal.notes())
        self._token: _Token | None = None

    def _connect(self) -> AbstractContextManager[Any]:
        if self._bounded:
            return nullcontext()
        self._token = _Token(self._binding)
        return listen(self._binding)

    def _receive(self, connection: AbstractContextManager[Any]) -> None:
        if isinstance(connection, socket.socket):
            assert self._token is not None
            commits = _Commits(self._journal, self._journaled)
            config = self._config(
                _Application(self._binding, self._token, self._folder, commits, self._events)
            )
            # The event loop of uvloop, where it is installed.
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(self._serve(connection, config, commits))

    def _config(self, application: _Application) -> uvicorn.Config:
        binding = self._binding
        return uvicorn.Config(
            application,
            ssl_certfile=binding.certfile,
            ssl_keyfile=binding.keyfile,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )

    async def _serve(self, listening: socket.socket, config: uvicorn.Config, commits: _Commits) -> None:
        server = uvicorn.Server(config)
        committing = asyncio.create_task(commits.run())
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        certificate = ServerCertificate(self._binding)
        while not (self._stopping.is_set() or serving.done() or committing.done()):
            certificate.renew(config.ssl if config.loaded else None)
            await asyncio.wait([serving, committing], timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        # Requests that have arrived are still answered.
        await serving
        if committing.done():
            await committing
        committing.cancel()
        with suppress(asyncio.CancelledError):
            await committing


class _Arrived(NamedTuple):
    """The records of a request, a digest that identifies it, and the handler that waits for its outcome."""

    records: PackedRecords
    size: int
    digest: bytes
    outcome: asyncio.Future[dict[str, Any]]


class _Commits:
    """Requests that wait to become durable; one task commits all that wait, while others arrive."""

    def __init__(self, journal: JournalWriter, journaled: JournaledMessages) -> None:
        self._journal: Final = journal
        self._journaled: Final = journaled
        self._waiting: Final[deque[_Arrived]] = deque()
        self._came: Final = asyncio.Event()
        self._ended = False

    @property
    def position(self) -> int:
        """The end of the journal."""
        return self._journal.position

    async def commit(self, records: PackedRecords, size: int, digest: bytes) -> dict[str, Any]:
        """Return the place of records, once they are durable. Raises CheckpointError when they cannot be."""
        if self._ended:
            raise self._refused()
        arrived = _Arrived(records, size, digest, asyncio.get_running_loop().create_future())
        self._waiting.append(arrived)
        self._came.set()
        return await arrived.outcome

    async def run(self) -> None:
        """Commit what arrives. Raises CheckpointError when the journal cannot be written.

        After an error all waiting requests are refused, and all later ones.
        """
        group: list[_Arrived] = []
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._waiting:
                    group = self._group()
                    await self._commit(group)
        except Exception:
            self._ended = True
            for one in [*group, *self._waiting]:
                if not one.outcome.done():
                    one.outcome.set_exception(self._refused())
            raise

    def _refused(self) -> CheckpointError:
        return CheckpointError("The journal takes no more records.")

    def _group(self) -> list[_Arrived]:
        """Return the requests to commit next: at least one."""
        group: list[_Arrived] = []
        size = 0
        while self._waiting and (not group or size + self._waiting[0].size <= MAX_BYTES):
            group.append(self._waiting.popleft())
            size += group[-1].size
        return group

    async def _commit(self, group: list[_Arrived]) -> None:
        new: dict[bytes, None] = {}
        repeated: list[bool] = []
        records: list[PackedRecords] = []
        for one in group:
            repeated.append(bool(one.digest) and (one.digest in self._journaled or one.digest in new))
            if not repeated[-1]:
                records.append(one.records)
                if one.digest:
                    new[one.digest] = None
        packed = PackedRecords.merged(records)
        position = await asyncio.to_thread(self._journal.append, packed, b"".join(new))
        self._journaled.add(new)
        for one, again in zip(group, repeated, strict=True):
            # Its client may have disconnected meanwhile.
            if not one.outcome.done():
                place = {"records": len(one.records), "position": position}
                one.outcome.set_result({**place, "repeated": True} if again else place)


class _Answer(NamedTuple):
    status: int
    body: Mapping[str, Any]
    headers: tuple[tuple[str, str], ...] = ()


class _Application:
    """The application that answers requests, by the interface of ASGI."""

    def __init__(
        self,
        binding: HttpListenBinding,
        token: _Token,
        folder: Path,
        commits: _Commits,
        events: EventHeaders | None,
    ) -> None:
        self._binding: Final = binding
        self._token: Final = token
        self._folder: Final = folder
        self._commits: Final = commits
        self._events: Final = events
        self._under_way_bytes = 0

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        headers = dict(scope["headers"])
        answer = self._refusal(scope, headers)
        if answer is None:
            answer = await self._accept(headers, receive)
        if answer is None:
            return
        body = msgspec.json.encode(answer.body)
        given = [("content-type", "application/json"), ("content-length", str(len(body))), *answer.headers]
        encoded = [(name.encode(), value.encode()) for name, value in given]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> _Answer | None:
        """Return the answer to a request whose body does not matter."""
        binding = self._binding
        if scope["path"] != binding.path:
            return _error(404, f"Records are taken at {binding.path}.")
        if scope["method"] != "POST":
            return _error(405, "Send records by POST.", ("allow", "POST"))
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not self._token.accepts(scheme, given):
            return _error(
                401, "The header Authorization must be: Bearer TOKEN.", ("www-authenticate", "Bearer")
            )
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            return _error(415, "Send the body without a content encoding.")
        length = headers.get(b"content-length", b"0")
        if int(length) > binding.max_request_bytes:
            return self._too_large()
        if self._under_way_bytes + int(length) > _UNDER_WAY_BYTES + binding.max_request_bytes:
            return self._too_much()
        if self._is_behind():
            return _error(
                503,
                f"The job is behind: its journal has more than {binding.max_journal_bytes} bytes.",
                ("retry-after", str(_LATER_S)),
            )
        return None

    async def _accept(
        self, headers: Mapping[bytes, bytes], receive: Callable[[], Awaitable[Any]]
    ) -> _Answer | None:
        """Journal the records of a request, and return its answer; None if its client has gone away."""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._under_way_bytes += len(parts[-1])
                if size > self._binding.max_request_bytes:
                    return self._too_large()
                if self._under_way_bytes > _UNDER_WAY_BYTES + self._binding.max_request_bytes:
                    return self._too_much()
                more = message.get("more_body", False)
            return await self._commit(headers, b"".join(parts))
        finally:
            self._under_way_bytes -= size

    async def _commit(self, headers: Mapping[bytes, bytes], body: bytes) -> _Answer:
        content = body
        try:
            event = None if self._events is None else event_in_request(self._events, headers, body)
            if event is not None:
                content = event
            records = pack_records(body) if event is None else PackedRecords.of([event])
        except ValueError as e:
            return _error(
                400, f"The body must be a JSON record, an array of them, or lines of JSON, but {e}."
            )
        key = headers.get(b"idempotency-key")
        digest = b"" if key is None else message_digest(key.decode("latin-1"), content)
        try:
            return _Answer(202, await self._commits.commit(records, len(content), digest))
        except CheckpointError:
            return _error(503, "The journal cannot be written.", ("retry-after", str(_LATER_S)))

    def _too_much(self) -> _Answer:
        return _error(503, "Too much is under way.", ("retry-after", str(_SOON_S)), ("connection", "close"))

    def _is_behind(self) -> bool:
        begin = journal_begin(self._folder.iterdir()) or 0
        return self._commits.position - begin > self._binding.max_journal_bytes

    def _too_large(self) -> _Answer:
        # The rest of the body is not read.
        return _error(
            413,
            f"A request has at most {self._binding.max_request_bytes} bytes. Send fewer records at once.",
            ("connection", "close"),
        )


def _error(status: int, reason: str, *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, {"error": reason}, headers)
