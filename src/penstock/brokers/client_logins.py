"""Client logins: give a Kafka client the password that a file has by now, when brokers refuse the one that it has."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.bindings.secrets import has_files, resolve_settings
from penstock.errors import BindingError

__all__ = ["ClientLogin"]

_LOGIN: Final = ("sasl.username", "sasl.password")
_LOOK_S: Final = 0.1


class ClientLogin:
    """The login of a client. A client connects again by itself, so all it needs is another password."""

    def __init__(self, stream: str, settings: Mapping[str, Any], client: Any) -> None:
        self._stream: Final = stream
        self._settings: Final = {name: settings[name] for name in _LOGIN}
        self._found = resolve_settings(stream, self._settings)
        self._looked_s = -math.inf
        self._renewing: threading.Thread | None = None
        self._lock: Final = threading.Lock()
        # A client calls this; it must not live as long as this does. Some clients can only be found by the collector.
        self._client: Callable[[], Any] = lambda: client
        with suppress(TypeError):
            self._client = weakref.ref(client)

    @classmethod
    def of(cls, stream: str, settings: Mapping[str, Any], client: Any) -> ClientLogin | None:
        """Return the login of a client; None if it cannot change."""
        own = {name: settings[name] for name in _LOGIN if name in settings}
        return cls(stream, own, client) if len(own) > 1 and has_files(own) else None

    def renew_soon(self) -> None:
        """Give the client what the files have now. A client calls this, and cannot be called meanwhile."""
        now_s = time.monotonic()
        # After a while without a poll, a client reports many errors at once.
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        self._renewing = threading.Thread(target=self._renew, name="kafka login", daemon=True)
        self._renewing.start()

    def await_renewal(self) -> None:
        """Wait until the client has what the files had.

        A consumer takes one call at a time, and one that is polled over and over would never take another.
        """
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None

    def _renew(self) -> None:
        client = self._client()
        # A file that is being replaced may be missing for a moment.
        with self._lock, suppress(BindingError):
            found = resolve_settings(self._stream, self._settings)
            if client is not None and found != self._found:
                client.set_sasl_credentials(*(found[name] for name in _LOGIN))
                self._found = found
