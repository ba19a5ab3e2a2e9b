"""Server certificate: that of a server for requests, loaded again when its files have another one."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Final

from penstock.bindings.types import HttpListenBinding
from penstock.errors import ExternalSystemError

__all__ = ["ServerCertificate", "check_certificate"]

_LOOK_S: Final = 5.0
_log: Final = logging.getLogger("penstock.sources")


def check_certificate(binding: HttpListenBinding) -> None:
    """Check that the certificate of a binding can be used, if it has one. Raises ExternalSystemError when it cannot."""
    # A context that cannot load a certificate has lost the one before, so this is one of its own.
    _load(binding, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def _load(binding: HttpListenBinding, context: ssl.SSLContext) -> None:
    try:
        if binding.certfile is not None:
            # Without a password, an encrypted key would be asked for at the terminal, for ever.
            context.load_cert_chain(binding.certfile, binding.keyfile, password="")
    except OSError as e:
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the certificate {binding.certfile} with the key {binding.keyfile} cannot be "
            f"used ({e.strerror or e}). Correct the paths in the URI."
        ) from e


class ServerCertificate:
    """The certificate of a server that runs. Certificates end after some months; a job may run for longer."""

    def __init__(self, binding: HttpListenBinding) -> None:
        self._binding: Final = binding
        self._seen = self._times_ns()
        self._looked_s = time.monotonic()

    def renew(self, context: ssl.SSLContext | None) -> None:
        """Look at the files now and then, and load what they have if it is another one, for new connections."""
        if context is None or time.monotonic() < self._looked_s + _LOOK_S:
            return
        self._looked_s = time.monotonic()
        if (times_ns := self._times_ns()) == self._seen:
            return
        self._seen = times_ns
        try:
            check_certificate(self._binding)
            _load(self._binding, context)
        except ExternalSystemError as e:
            # The other file of the two may come a moment later.
            extra = {"stream": self._binding.stream}
            _log.warning("%s Until the files change, the last certificate counts.", e, extra=extra)

    def _times_ns(self) -> list[int]:
        paths = [Path(path) for path in (self._binding.certfile, self._binding.keyfile) if path is not None]
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
