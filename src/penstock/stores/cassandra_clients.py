"""Cassandra clients: one session for each binding in a process, and errors of the servers as sentences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from penstock.base.tls_ports import tls_advice
from penstock.bindings.secrets import refused_login, resolve_setting
from penstock.bindings.versioned_types import CassandraBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.stores.tls_contexts import tls_context

__all__ = ["as_external", "get_session", "is_passing", "login_of", "open_session"]

_CONNECT_S: Final = 10
_ANSWER_S: Final = 10

_kept: Final[dict[tuple[Any, ...], Any]] = {}


def get_session(binding: CassandraBinding) -> Any:
    """Return the session of a binding in this process. Raises as a start does."""
    key = (os.getpid(), binding.uri, *binding.login.values())
    if key not in _kept:
        _kept[key] = _connect(binding)
    return _kept[key]


@contextlib.contextmanager
def open_session(binding: CassandraBinding) -> Iterator[Any]:
    """Open a session for a moment. Raises as a start does."""
    session = _connect(binding)
    try:
        yield session
    finally:
        session.cluster.shutdown()


def _connect(binding: CassandraBinding) -> Any:
    try:
        return _open(binding)
    except ExternalSystemError as e:
        host, port = binding.servers[0]
        advice = tls_advice(host, port, is_secure=binding.secure)
        raise ExternalSystemError(f"{e}{advice}") from e.__cause__


def _open(binding: CassandraBinding) -> Any:
    try:
        from cassandra import ConsistencyLevel
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import DCAwareRoundRobinPolicy, FallthroughRetryPolicy, TokenAwarePolicy
    except ImportError:
        raise BindingError(
            f"Stream {binding.stream!r}: Cassandra needs cassandra-driver, which is not installed. Install it: "
            "pip install 'penstock[cassandra]'."
        ) from None
    context = tls_context(binding)
    if context is not None:
        # Nodes tell the addresses of others, and certificates rarely have these.
        context.check_hostname = False
    profile = ExecutionProfile(
        # A write goes to a node that has a replica of its row.
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(binding.datacenter or "")),
        # The sink itself tries again, and for longer.
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=getattr(ConsistencyLevel, binding.consistency.upper()),
        request_timeout=_ANSWER_S,
    )
    with as_external(binding):
        cluster = Cluster(
            list(binding.servers),
            port=binding.servers[0][1],
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            auth_provider=login_of(binding),
            ssl_context=context,
            connect_timeout=_CONNECT_S,
            control_connection_timeout=_ANSWER_S,
            application_name="penstock",
        )
        try:
            return cluster.connect()
        except BaseException:
            cluster.shutdown()
            _require_datacenter(binding, cluster)
            raise


def login_of(binding: CassandraBinding) -> Any:
    """Return what logs each connection in, with the password that a file has by then; None without a user.

    Raises BindingError when there is no password now.
    """
    from cassandra.auth import AuthProvider, PlainTextAuthenticator

    class Login(AuthProvider):  # type: ignore[misc]  # the driver has no types
        def new_authenticator(self, host: object) -> Any:  # noqa: ARG002  # the signature is the driver's
            password = resolve_setting(binding.stream, binding.login, "password")
            return PlainTextAuthenticator(binding.user, password)

    if not binding.user:
        return None
    # The driver would try again for a while.
    resolve_setting(binding.stream, binding.login, "password")
    return Login()


def _require_datacenter(binding: CassandraBinding, cluster: Any) -> None:
    """Raise BindingError if the servers tell of nodes, and of none in the data center of the binding."""
    found = sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter})
    if found and binding.datacenter is not None and binding.datacenter not in found:
        raise BindingError(
            f"Stream {binding.stream!r}: {binding.address} has no data center {binding.datacenter}, but "
            f"{', '.join(found)}. Correct datacenter in the URI."
        )


def is_passing(error: BaseException) -> bool:
    """Return whether such a failed write may succeed later: servers are unreachable, slow or overloaded."""
    from cassandra import OperationTimedOut, RequestExecutionException, Unauthorized
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionException

    if isinstance(error, Unauthorized):
        return False
    kinds = (OperationTimedOut, RequestExecutionException, NoHostAvailable, ConnectionException)
    return isinstance(error, kinds)


@contextlib.contextmanager
def as_external(binding: CassandraBinding) -> Iterator[None]:
    """Turn an error of the servers into one that says what to do.

    Raises BindingError for what the URI or the user's rights must change, and ExternalSystemError for the rest.
    """
    from cassandra import (
        AuthenticationFailed,
        DriverException,
        RequestExecutionException,
        Unauthorized,
        UnresolvableContactPoints,
    )
    from cassandra.cluster import NoHostAvailable

    name = f"Stream {binding.stream!r}"
    try:
        yield
    except (DriverException, RequestExecutionException, NoHostAvailable, OSError) as e:
        # It may also have the names of servers, without a reason.
        errors = e.errors if isinstance(e, NoHostAvailable) and isinstance(e.errors, dict) else {}
        causes = [e, *errors.values()]
        reason = " ".join(str(causes[-1]).split())
        if isinstance(e, UnresolvableContactPoints):
            reason = "their names have no addresses"
        if any(isinstance(cause, AuthenticationFailed) for cause in causes):
            raise refused_login(binding.login)(
                f"{name}: {binding.address} refuses the login ({reason}). Correct user and password in the URI."
            ) from e
        if isinstance(e, Unauthorized):
            raise BindingError(
                f"{name}: the user may not use {binding.place} ({reason}). It needs SELECT and MODIFY on the table."
            ) from e
        if "WRONG_VERSION_NUMBER" in reason:
            raise BindingError(
                f"{name}: {binding.address} does not answer with TLS ({reason}). Leave tls=true and the certificates "
                "out of the URI, or correct the port."
            ) from e
        if "CERTIFICATE" in reason.upper():
            raise BindingError(
                f"{name}: the certificate of {binding.address} is not trusted ({reason}). Give the certificates to "
                "trust as cafile=PATH."
            ) from e
        raise ExternalSystemError(
            f"{name}: {binding.place} cannot be reached or written ({reason}). Start the job again when it can; what "
            "was not committed is written again."
        ) from e
