"""OpenSearch clients: one for each binding in a process, and what a server answers as errors with a remedy."""

from __future__ import annotations

import functools
import os
from typing import Any, Final

import httpx
import msgspec

from penstock.base.tls_ports import tls_advice
from penstock.bindings.secrets import refused_login, resolve_setting
from penstock.bindings.versioned_types import OpenSearchBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.stores.tls_contexts import tls_context

__all__ = ["check_server", "failed", "get_client", "refuse"]

_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0
_SHOWN: Final = 500

_kept: Final[dict[tuple[Any, ...], httpx.Client]] = {}


def get_client(binding: OpenSearchBinding) -> httpx.Client:
    """Return the client of a binding in this process. It connects when it is used."""
    key = (os.getpid(), binding.uri, *binding.login.values())
    if key not in _kept:
        _kept[key] = httpx.Client(
            base_url=binding.url,
            auth=functools.partial(_with_login, binding) if binding.user else None,
            verify=tls_context(binding) or True,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            trust_env=False,
        )
    return _kept[key]


def _with_login(binding: OpenSearchBinding, request: httpx.Request) -> httpx.Request:
    """Return a request with the login, with the password that a file has by now."""
    password = resolve_setting(binding.stream, binding.login, "password")
    return next(httpx.BasicAuth(binding.user or "", password or "").auth_flow(request))


def check_server(binding: OpenSearchBinding) -> str:
    """Return the kind and the version of the server. Writes nothing. Raises as a start does."""
    try:
        answer = get_client(binding).get("/")
    except httpx.TransportError as e:
        advice = tls_advice(binding.host, binding.port, is_secure=binding.secure)
        raise failed(binding, str(e), advice) from e
    refuse(binding, answer)
    try:
        version = msgspec.json.decode(answer.content)["version"]
        kind = "OpenSearch" if version.get("distribution") == "opensearch" else "Elasticsearch"
        return f"{kind} {version['number']}"
    except (msgspec.DecodeError, KeyError, TypeError):
        raise BindingError(
            f"Stream {binding.stream!r}: {binding.url} is neither OpenSearch nor Elasticsearch. Correct the URI."
        ) from None


def refuse(binding: OpenSearchBinding, answer: httpx.Response) -> None:
    """Raise for an answer that says that nothing at all can be written; return for all others."""
    reason = " ".join(answer.text[:_SHOWN].split())
    if answer.status_code in (401, 403):
        raise (refused_login(binding.login) if answer.status_code == 401 else BindingError)(
            f"Stream {binding.stream!r}: {binding.url} refuses the login ({answer.status_code} {reason}). Correct user "
            "and password in the URI, or the user's rights."
        )
    if answer.status_code != 200:
        raise failed(binding, f"{answer.status_code} {reason}")


def failed(binding: OpenSearchBinding, reason: str, advice: str = "") -> BindingError | ExternalSystemError:
    """Return the error for a server that cannot be reached, or cannot write, with further advice behind a space."""
    if "WRONG_VERSION_NUMBER" in reason:
        return BindingError(
            f"Stream {binding.stream!r}: {binding.url} does not answer with TLS ({reason}). Leave tls=true and the "
            "certificates out of the URI, or correct the port."
        )
    if "CERTIFICATE" in reason.upper():
        return BindingError(
            f"Stream {binding.stream!r}: the certificate of {binding.url} is not trusted ({reason}). Give the "
            "certificates to trust as cafile=PATH."
        )
    return ExternalSystemError(
        f"Stream {binding.stream!r}: {binding.place} cannot be reached or written ({reason or 'no answer'}). Start the "
        f"job again when it can; what was not committed is written again.{advice}"
    )
