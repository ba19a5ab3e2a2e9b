"""Requests of a webhook: sent, repeated as the server asks, and judged by its answer."""

from __future__ import annotations

import datetime as dt
import email.utils
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from penstock.base.tls_ports import speaks_tls, tls_advice
from penstock.bindings.secrets import has_files, resolve_settings
from penstock.bindings.types import WebhookBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.cloud_events import BATCH_CONTENT_TYPE, EVENT_CONTENT_TYPE

__all__ = ["Answer", "Sender", "check_secrets", "check_server", "get_sender", "request_headers", "wait_s"]

# Answers that say that the same request may succeed later.
_AGAIN: Final = (408, 425, 429)
# Answers about the place or the login, not about the record.
_PLACE: Final = (401, 403, 404, 405, 407, 410)
_LOGIN: Final = (401, 403)
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0
_SHOWN: Final = 200

_senders: Final[dict[tuple[Any, ...], Sender]] = {}
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class Answer:
    """The answer to a request: whether the server has taken it, and if not, why."""

    taken: bool
    reason: str = ""


@dataclass(frozen=True)
class _Login:
    """The headers and parameters of requests, with the values that they refer to."""

    headers: Mapping[str, str]
    query: Mapping[str, str]


class Sender:
    """Sends requests to the server of a binding, on connections that it keeps. Any thread may send.

    When the server refuses the login, what headers and parameters refer to is looked up again: a file may have another
    token by now. If the server has taken requests before, the file may get it soon.
    """

    def __init__(
        self,
        binding: WebhookBinding,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._binding: Final = binding
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._login = _find_login(binding)
        self._may_change: Final = has_files({**binding.headers, **binding.query})
        self._has_taken = False
        self._client: Final = httpx.Client(
            headers={"Content-Type": _content_type(binding)},
            timeout=binding.timeout_s,
            limits=httpx.Limits(max_connections=binding.requests_at_once),
        )

    def send(
        self, body: bytes, request_id: str | None, attributes: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a body, of an event with `attributes` as headers, until the server has judged it.

        Raises ExternalSystemError when it has not done so for `retry_s`, or when place or login are wrong.
        """
        more = {} if request_id is None else {"Idempotency-Key": request_id}
        more.update(attributes or {})
        begun_s, pause_s = self._clock(), _FIRST_WAIT_S
        while True:
            asked_s, login = None, self._login
            headers = {**login.headers, **more}
            try:
                response = self._client.post(
                    self._binding.url, content=body, headers=headers, params=login.query or None
                )
            except httpx.TransportError as e:
                why = f"{type(e).__name__}: {e}".rstrip(": ")
                self._check_tls(why)
            else:
                why = _describe(response)
                if response.is_success:
                    self._has_taken = True
                    return Answer(taken=True)
                status = response.status_code
                if status in _LOGIN and self._may_change and self._has_new_login(login):
                    continue
                is_waited_for = status in _LOGIN and self._may_change and self._has_taken
                if not is_waited_for and (300 <= status < 400 or status in _PLACE):
                    raise self._error(f"{why}. Correct the URI or the login, and start the job again")
                if not is_waited_for and response.is_client_error and status not in _AGAIN:
                    return Answer(False, f"{self._binding.url} refuses the record ({why}).")
                asked_s = wait_s(response.headers.get("Retry-After"), response.headers.get("Date"))
            pause_s = min(pause_s * 2, _LONGEST_WAIT_S)
            wait = pause_s if asked_s is None else asked_s
            if self._clock() - begun_s + wait > self._binding.retry_s:
                raise self._error(f"{why}, for {self._binding.retry_s} s. The records are sent again")
            self._sleep(wait)

    def _check_tls(self, why: str) -> None:
        """Raise ExternalSystemError when one side speaks TLS and the other does not: to wait would not help."""
        url = httpx.URL(self._binding.url)
        if url.scheme == "http" and (advice := tls_advice(url.host, url.port or 80, is_secure=False)):
            raise self._error(f"{why}.{advice.rstrip('.')}")
        if "WRONG_VERSION_NUMBER" in why:
            raise self._error(f"{why}. The port does not speak TLS: correct it, or write http://")

    def _has_new_login(self, refused: _Login) -> bool:
        """Look up the login again; return whether it is another one than was refused."""
        # A file that is being replaced may be missing for a moment.
        with suppress(BindingError):
            self._login = _find_login(self._binding)
        return self._login != refused

    def _error(self, why: str) -> ExternalSystemError:
        return ExternalSystemError(
            f"Sink {self._binding.stream!r}: {self._binding.url} takes no records: {why}."
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def check_secrets(binding: WebhookBinding) -> None:
    """Raise BindingError unless all values that a binding refers to are there, and can be sent."""
    _find_login(binding)


def _find_login(binding: WebhookBinding) -> _Login:
    return _Login(request_headers(binding), resolve_settings(binding.stream, binding.query))


def request_headers(binding: WebhookBinding) -> dict[str, str]:
    """Return the headers of each request. Raises BindingError when one is missing or cannot be sent."""
    headers = resolve_settings(binding.stream, binding.headers)
    for name, value in headers.items():
        # The client's own error would show the value.
        if not (value.isascii() and value.isprintable()):
            raise BindingError(
                f"Sink {binding.stream!r}: the value of header.{name} cannot be sent in a header, since it has a line "
                "break, another control character, or one outside ASCII. Correct the variable, the file or the URI."
            )
    return headers


def check_server(binding: WebhookBinding) -> str:
    """Connect to the server of a binding, and send nothing; return its host and port.

    Raises ExternalSystemError when it does not answer, and BindingError when a secret is missing.
    """
    check_secrets(binding)
    url = httpx.URL(binding.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        if url.scheme == "http":
            socket.create_connection((url.host, port), binding.timeout_s).close()
        elif not speaks_tls(url.host, port, binding.timeout_s):
            raise ExternalSystemError(
                f"Sink {binding.stream!r}: nothing that speaks TLS answers at {url.host}:{port}. Correct the port, or "
                "write http:// for a server without TLS."
            )
    except OSError as e:
        raise ExternalSystemError(
            f"Sink {binding.stream!r}: {url.host}:{port} does not answer ({e.strerror or e})."
        ) from e
    return f"{url.host}:{port}"


def get_sender(binding: WebhookBinding) -> Sender:
    """Return this process's sender of a binding."""
    with _lock:
        key = os.getpid(), binding.uri, *sorted(binding.headers.items()), *sorted(binding.query.items())
        if key not in _senders:
            _senders[key] = Sender(binding)
        return _senders[key]


def wait_s(retry_after: str | None, date: str | None) -> float | None:
    """Return for how many seconds a server asks to wait: a number, or a time beside that of its answer.

    >>> wait_s("3", None)
    3.0
    >>> wait_s("Wed, 21 Oct 2026 07:28:05 GMT", "Wed, 21 Oct 2026 07:28:00 GMT")
    5.0
    """
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        until = email.utils.parsedate_to_datetime(retry_after)
        # By the server's own clock, which may differ from ours.
        now = dt.datetime.now(dt.UTC) if date is None else email.utils.parsedate_to_datetime(date)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _content_type(binding: WebhookBinding) -> str:
    if binding.events is None or binding.events.is_binary:
        return "application/json"
    return EVENT_CONTENT_TYPE if binding.records_per_request == 1 else BATCH_CONTENT_TYPE


def _describe(response: httpx.Response) -> str:
    text = " ".join(response.text[:_SHOWN].split())
    return f"{response.status_code} {response.reason_phrase}{': ' + text if text else ''}"
