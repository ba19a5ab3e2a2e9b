"""Redis clients: one for each binding in a process, and errors of the server as sentences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from penstock.base.tls_ports import speaks_tls, tls_advice
from penstock.bindings.secrets import refused_login, resolve_setting
from penstock.bindings.types import RedisBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.stores.tls_contexts import tls_context

__all__ = ["as_external", "check_server", "get_client"]

_CONNECT_S: Final = 10
# A server that stands still does not answer; the connection then fails after this.
_ANSWER_S: Final = 60

_kept: Final[dict[tuple[Any, ...], Any]] = {}


def get_client(binding: RedisBinding) -> Any:
    """Return the client of a binding in this process. It connects when it is used.

    Raises BindingError when redis-py is missing, and ExternalSystemError when TLS is wanted and not spoken.
    """
    key = (os.getpid(), binding.uri, *binding.login.values())
    if key not in _kept:
        _kept[key] = _client(binding)
    return _kept[key]


def _client(binding: RedisBinding) -> Any:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.credentials import CredentialProvider
        from redis.retry import Retry
    except ImportError:
        raise BindingError(
            f"Stream {binding.stream!r}: Redis needs redis-py, which is not installed. Install it: "
            "pip install 'penstock[redis]'."
        ) from None

    class Login(CredentialProvider):
        """The login of each connection, with the password that a file has by then."""

        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            password = resolve_setting(binding.stream, binding.login, "password") or ""
            return (password,) if binding.user is None else (binding.user, password)

    # Report a missing secret now, not at the first connection.
    resolve_setting(binding.stream, binding.login, "password")
    tls: dict[str, Any] = {}
    if binding.secure:
        # The client would read the files when it connects, as if the server were at fault.
        tls_context(binding)
        _check_tls(binding)
        tls = {
            "ssl": True,
            "ssl_ca_certs": binding.cafile,
            "ssl_certfile": binding.certfile,
            "ssl_keyfile": binding.keyfile,
        }
    return redis.Redis(
        host=binding.host,
        port=binding.port,
        db=binding.database,
        credential_provider=Login() if binding.user or binding.login else None,
        socket_connect_timeout=_CONNECT_S,
        socket_timeout=_ANSWER_S,
        socket_keepalive=True,
        # A write that is sent again on another connection could overtake, or come behind, what was written after it.
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name="penstock",
        **tls,
    )


def _check_tls(binding: RedisBinding) -> None:
    """Raise ExternalSystemError when a port takes connections and does not speak TLS.

    The client gives a handshake as long as an answer, and a server without TLS waits for the end of what it takes for a
    command.
    """
    with contextlib.suppress(OSError):
        if not speaks_tls(binding.host, binding.port, _CONNECT_S):
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: nothing that speaks TLS answers at {binding.host}:{binding.port}. Correct "
                "the port, or write redis:// for a server without TLS."
            )


def check_server(binding: RedisBinding) -> None:
    """Check that the server lets the job connect. Writes nothing. Raises as a start does."""
    client = get_client(binding)
    with as_external(binding):
        client.ping()


@contextlib.contextmanager
def as_external(binding: RedisBinding) -> Iterator[None]:
    """Turn an error of the server into one that says what to do.

    Raises BindingError for what the URI or the user's rights must change, and ExternalSystemError for the rest.
    """
    import redis

    server = f"{binding.host}:{binding.port}"
    try:
        yield
    except redis.exceptions.RedisError as e:
        reason = " ".join(str(e).split())
        is_refused = isinstance(e, redis.exceptions.AuthenticationError)
        if is_refused or "DB index is out of range" in reason:
            raise (refused_login(binding.login) if is_refused else BindingError)(
                f"Stream {binding.stream!r}: {server} refuses the login ({reason}). Correct user, password or "
                "database in the URI."
            ) from e
        if isinstance(e, redis.exceptions.NoPermissionError) or "NOPERM" in reason:
            raise BindingError(
                f"Stream {binding.stream!r}: the user may not write to {binding.place} ({reason}). It needs the keys "
                "of the sink and penstock:*, and the commands of docs/connectors/redis.md."
            ) from e
        if "CERTIFICATE" in reason.upper():
            raise BindingError(
                f"Stream {binding.stream!r}: the certificate of {server} is not trusted ({reason}). Give the "
                "certificates to trust as cafile=PATH."
            ) from e
        if reason.startswith(("MOVED", "CROSSSLOT")):
            raise BindingError(
                f"Stream {binding.stream!r}: {server} belongs to a Redis Cluster, which penstock cannot write to. Use "
                "a server, or servers behind one address."
            ) from e
        if isinstance(e, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
            advice = tls_advice(binding.host, binding.port, is_secure=binding.secure)
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the Redis server {server} does not answer ({reason}). Start the job again "
                f"when it does.{advice}"
            ) from e
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: {binding.place} cannot be written ({reason}). What was not committed is "
            "written again."
        ) from e
