"""HTTP: requests to a server by REST, its lists and streams, with its problems as errors."""

from __future__ import annotations

import json
import math
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final, Self

import httpx

from penstock.client.discovery import Address
from penstock.errors import ExternalSystemError, PenstockError

__all__ = ["RefusedError", "Server", "ServerFailedError"]

_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 5.0
_PAGE: Final = 1000
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_GONE_S: Final = 30.0
"""How long a server that has answered may be gone, say during a restart."""


class RefusedError(PenstockError):
    """The server refuses a request. `kind` is the end of the problem's type, such as `unknown-id`."""

    fault = "user"

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind: Final = kind


class ServerFailedError(PenstockError):
    """The server failed, or penstock does not understand its answer."""


class Server:
    """A connection to a server.

    A request that changes something has an Idempotency-Key and is sent again when the connection is lost, so that it
    takes effect once. Proxies and redirects are not followed, so that nobody else gets the token.

    Raises RefusedError, ServerFailedError, ExternalSystemError.
    """

    def __init__(self, address: Address, timeout_s: float = _TIMEOUT_S) -> None:
        self.address: Final = address
        self._client: Final = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=_timeout(timeout_s),
            follow_redirects=False,
            trust_env=False,
            verify=_tls_context(address) if address.url.startswith("https:") else False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, *, timeout_s: float | None = None, **parameters: Any) -> Any:
        """Get the content at a path, as JSON values. `timeout_s` is for this request."""
        more = {} if timeout_s is None else {"timeout": _timeout(timeout_s)}
        return self._read_content(self._send("GET", path, params=_without_none(parameters), **more))

    def change(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Request a change; it takes effect once, however often it has to be sent. `timeout_s` is for this request."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        more: dict[str, Any] = {} if content is None else {"json": dict(content)}
        if timeout_s is not None:
            more["timeout"] = _timeout(timeout_s)
        return self._read_content(self._send(method, path, headers=headers, **more))

    def items(self, path: str, **parameters: Any) -> list[Any]:
        """Get all items of a list that comes in pages."""
        found: list[Any] = []
        after = None
        while True:
            page = self.get(path, **parameters, limit=_PAGE, after=after)
            found += page["items"]
            after = page["next"]
            if after is None or not page["items"]:
                return found

    def events(self, **parameters: Any) -> list[Any]:
        """Get all events, oldest first. Their list has no last page, so this continues until a page is not full."""
        found: list[Any] = []
        while True:
            page = self.get("/v1/events", **parameters, limit=_PAGE, after=found[-1]["id"] if found else 0)
            found += page["items"]
            if len(page["items"]) < _PAGE:
                return found

    def stream(self, path: str, **parameters: Any) -> Iterator[Any]:
        """Yield the objects of a stream, without end. After a lost connection it continues after the last object."""
        last_id: str | None = None
        # A server that never answered gets no time to come back.
        gone_s: float | None = -math.inf
        while True:
            headers = {} if last_id is None else {"Last-Event-ID": last_id}
            try:
                with self._client.stream(
                    "GET", path, params=_without_none(parameters), headers=headers, timeout=_TIMEOUT_S
                ) as response:
                    if response.status_code != httpx.codes.OK:
                        response.read()
                        self._read_content(response)
                    gone_s = None
                    for event_id, data in _read_messages(response.iter_lines()):
                        last_id = event_id or last_id
                        yield data
            except (httpx.TransportError, ExternalSystemError) as e:
                gone_s = time.monotonic() if gone_s is None else gone_s
                if time.monotonic() - gone_s > _GONE_S:
                    raise self._no_answer(e) from None
            time.sleep(_PAUSE_S)

    def download(self, path: str, file: IO[bytes]) -> None:
        """Write the content at a path to a file."""
        try:
            with self._client.stream("GET", path) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._read_content(response)
                for part in response.iter_bytes():
                    file.write(part)
        except httpx.TransportError as e:
            raise self._no_answer(e) from None

    def patient_get(self, path: str, **parameters: Any) -> Any:
        """Get the content at a path, and wait for a server that is being restarted."""
        begun_s = time.monotonic()
        while True:
            try:
                return self.get(path, **parameters)
            except ExternalSystemError:
                if time.monotonic() - begun_s > _GONE_S:
                    raise
            time.sleep(_PAUSE_S)

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        for tried in range(1, _TRIES + 1):
            try:
                return self._client.request(method, path, **more)
            except httpx.ConnectError as e:
                raise self._no_answer(e) from None
            except httpx.TransportError as e:
                if tried == _TRIES:
                    raise self._no_answer(e) from None
            time.sleep(_PAUSE_S)
        raise AssertionError("unreachable: the last try returns or raises")

    def _no_answer(self, error: Exception) -> ExternalSystemError:
        why = str(error) or type(error).__name__
        return ExternalSystemError(
            f"No server answers at {self.address.url} ({why}). Check that penstock serve runs there, or name another "
            "server with --server."
        )

    def _read_content(self, response: httpx.Response) -> Any:
        """Return the content of an answer. Raises its problem as an error."""
        if response.is_redirect:
            raise ServerFailedError(
                f"{self.address.url} redirects to another address, which is not followed, since the token is "
                "for this one. Name the address of the server itself."
            )
        try:
            content = json.loads(response.content) if response.content else None
        except ValueError:
            raise ServerFailedError(
                f"{self.address.url} does not answer like a penstock server ({response.status_code}). Name "
                "another one with --server."
            ) from None
        if response.is_success:
            return content
        problem = content if isinstance(content, dict) else {}
        text = " ".join(
            [str(problem.get("detail", response.reason_phrase)), *map(str, problem.get("errors") or ())]
        )
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise ExternalSystemError(text)
        if response.is_server_error:
            raise ServerFailedError(f"The server failed: {text} See its log.")
        raise RefusedError(text, str(problem.get("type", "")).rpartition(":")[2])


def _timeout(timeout_s: float) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))


def _without_none(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _tls_context(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if address.ca is None else str(address.ca))
    except (OSError, ssl.SSLError) as e:
        raise RefusedError(f"The certificates in {address.ca} cannot be read: {e}.", "certificates") from None


def _read_messages(lines: Iterator[str]) -> Iterator[tuple[str | None, Any]]:
    """Yield the messages of server-sent events, with their ids."""
    event_id, data = None, ""
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event_id = value
        elif name == "data":
            data += value
        elif not line and data:
            yield event_id, json.loads(data)
            event_id, data = None, ""
