"""TLS ports: whether a port speaks TLS, when a client cannot talk to it and does not say why."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

__all__ = ["speaks_tls", "tls_advice"]

_TIMEOUT_S: Final = 2.0


def speaks_tls(host: str, port: int, timeout_s: float = _TIMEOUT_S) -> bool:
    """Return whether a port answers as TLS does, whatever its certificate is. Raises OSError if nothing listens."""
    # Without the certificates to trust, which take long to load.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), timeout_s) as plain:
        try:
            context.wrap_socket(plain, server_hostname=host).close()
        except ssl.SSLError as e:
            # It may refuse this client, in the words of TLS.
            return "ALERT" in (e.reason or "")
        except OSError:
            return False
    return True


def tls_advice(host: str, port: int, *, is_secure: bool) -> str:
    """Return what to correct if a client that could not talk to a port should or should not use TLS; else nothing.

    The text begins with a space, to follow the sentence that says what has failed.

    >>> tls_advice("127.0.0.1", 1, is_secure=True)
    ''
    """
    with contextlib.suppress(OSError):
        speaks = speaks_tls(host, port)
        if is_secure and not speaks:
            return " Nothing that speaks TLS answers at that port: correct the port, or leave TLS out of the URI."
        if speaks and not is_secure:
            return " That port speaks TLS: correct the port, or ask for TLS in the URI."
    return ""
