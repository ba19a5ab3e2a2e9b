"""TLS contexts: whom a client trusts, and how it identifies itself."""

from __future__ import annotations

import ssl

from penstock.bindings.types import RedisBinding
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.errors import BindingError

__all__ = ["tls_context"]


def tls_context(binding: CassandraBinding | OpenSearchBinding | RedisBinding) -> ssl.SSLContext | None:
    """Return the context of a binding; None where connections are not encrypted. Raises BindingError."""
    if not binding.secure:
        return None
    try:
        context = ssl.create_default_context(cafile=binding.cafile)
        if binding.certfile is not None:
            # Without this, the password of an encrypted key would be asked for at the terminal, forever.
            context.load_cert_chain(binding.certfile, binding.keyfile, password="")
    except (OSError, ssl.SSLError) as e:
        raise BindingError(
            f"Stream {binding.stream!r}: the certificates or the key cannot be read ({e}). Correct cafile, certfile "
            "and keyfile in the URI."
        ) from e
    return context
