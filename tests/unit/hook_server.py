"""A server that takes records by POST, keeps them, and answers as a test wants it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["Asked", "HookServer", "Reply"]


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def id(self) -> str | None:
        """What tells the request apart."""
        return self.headers.get("Idempotency-Key")


@dataclass(frozen=True)
class Reply:
    """What to answer; 0 closes the connection without an answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


class HookServer:
    """The server; a context manager. `taken` are the requests that it has answered with 2xx."""

    def __init__(self, reply: Callable[[Asked], Reply] = lambda asked: Reply()) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self.taken: list[Asked] = []
        self.at_once = 0
        self.port = 0
        self._open = 0
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the same port as before."""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                hook._take(self)

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        asked = Asked(handler.path, dict(handler.headers), handler.rfile.read(length))
        if len(asked.body) < length:
            # The sender was killed meanwhile.
            handler.close_connection = True
            return
        with self._lock:
            self._open += 1
            self.at_once = max(self.at_once, self._open)
            self.asked.append(asked)
        reply = self.reply(asked)
        with self._lock:
            self._open -= 1
            if 200 <= reply.status < 300:
                self.taken.append(asked)
        if not reply.status or self._server is None:
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.text)))
        handler.end_headers()
        handler.wfile.write(reply.text.encode())
