"""Connection diagnosis: find out why a Kafka broker that answers cannot be used when its client does not say."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.tls_ports import speaks_tls

__all__ = ["connection_problem"]

_TIMEOUT_S: Final = 2.0
_ENCRYPTED: Final = ("ssl", "sasl_ssl")
# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_OTHER_HOST: Final = (62, 64)
# Brokers send either when a client shows no certificate, or one of an authority that they do not know.
_CLIENT_REFUSED: Final = ("alert bad certificate", "certificate required", "alert unknown ca")


def connection_problem(servers: str, settings: Mapping[str, Any], reason: str) -> str | None:
    """Return what is wrong with a connection, and the remedy; None if nobody answers, or nothing is known.

    Args:
        servers: the addresses, `host:port,host:port`.
        settings: the client's settings, with references resolved.
        reason: the reason that the client gave.

    """
    if "SASL authentication" in reason:
        return f"it refuses the login ({reason}). Correct sasl.username, sasl.password and sasl.mechanisms in the URI."
    if any(alert in reason for alert in _CLIENT_REFUSED):
        return (
            f"it does not accept the client's certificate, or wants one ({reason}). Name one that it knows in "
            "ssl.certificate.location, with its key in ssl.key.location."
        )
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        with contextlib.suppress(OSError):
            return _problem_at(host.strip("[]"), int(port), settings)
    return None


def _problem_at(host: str, port: int, settings: Mapping[str, Any]) -> str | None:
    """Return the problem of one address. Raises OSError when nothing listens there."""
    speaks = speaks_tls(host, port)
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    if protocol not in _ENCRYPTED:
        if not speaks:
            return None
        return (
            f"it expects TLS, and the client speaks {protocol.upper()}. Write security.protocol=SSL, or SASL_SSL for a "
            "login, in the URI."
        )
    if not speaks:
        return (
            f"it does not speak TLS at that port, but security.protocol={protocol.upper()}. Correct the port, or "
            "security.protocol, in the URI."
        )
    return _certificate_problem(host, port, settings)


def _certificate_problem(host: str, port: int, settings: Mapping[str, Any]) -> str | None:
    """Return why a client with these settings does not accept the certificate of a broker."""
    try:
        _shake_hands(host, port, _context(settings))
    except ssl.SSLCertVerificationError as e:
        if e.verify_code in _OTHER_HOST:
            any_host = {**settings, "ssl.endpoint.identification.algorithm": "none"}
            names = " and ".join(_shake_hands(host, port, _context(any_host))) or "no address"
            return (
                f"its certificate is for {names}, not for {host}. Write an address that it is for in the URI."
            )
        return (
            f"its certificate is not accepted ({e.verify_message}). Name the file with the certificate of its "
            "authority in ssl.ca.location."
        )
    return None


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context that librdkafka would make from settings."""
    location, text = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    location = None if location == "probe" else location
    is_folder = location is not None and Path(location).is_dir()
    context = ssl.create_default_context(
        cafile=None if is_folder else location, capath=location if is_folder else None, cadata=text
    )
    verifies = str(settings.get("enable.ssl.certificate.verification", "true")).lower() == "true"
    context.check_hostname = verifies and settings.get("ssl.endpoint.identification.algorithm") != "none"
    if not verifies:
        context.verify_mode = ssl.CERT_NONE
    return context


def _shake_hands(host: str, port: int, context: ssl.SSLContext) -> list[str]:
    """Connect with TLS, and return the addresses that the broker's certificate is for, if it was verified."""
    with (
        socket.create_connection((host, port), _TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert() or {}
        return [str(pair[1]) for pair in found.get("subjectAltName", ())]
