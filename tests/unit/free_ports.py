"""Ports for servers that tests start, and start again under the same port."""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Final

_FIRST: Final = 15_000
_COUNT: Final = 15_000
_ATTEMPTS: Final = 100


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at.

    It is below those that the kernel gives to outgoing connections. One of these would be free now and taken by the
    time that a slow server has started, or starts again.
    """
    for _ in range(_ATTEMPTS):
        port = _FIRST + secrets.randbelow(_COUNT)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no port between {_FIRST} and {_FIRST + _COUNT} is free")
