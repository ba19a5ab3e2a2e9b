"""Trust: make a Java from PyPI trust the certificate authorities of this machine.

Such a Java knows only the public authorities. Behind a proxy, or in a company with its own authority, it could not
fetch anything, although every other program on the machine can.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path
from typing import Final

from penstock.machine.cache import cache_folder, write_whole

__all__ = ["system_trust_store"]

_JAVA_STORES: Final = ("/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts")
_PEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"

# The Java key store format (JKS), written here without Java's keytool: a header, one entry for each trusted
# certificate, and a keyed digest. The password is that of Java's own store; it protects nothing secret.
_MAGIC: Final = 0xFEEDFEED
_FORMAT_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_PASSWORD: Final = "changeit"  # noqa: S105  # Java's own default; the store holds public certificates
_SALT: Final = b"Mighty Aphrodite"


def system_trust_store() -> Path | None:
    """Return a trust store for Java: from SSL_CERT_FILE, else the system's for Java, else from the system's bundle."""
    named = os.environ.get("SSL_CERT_FILE")
    if named and Path(named).is_file():
        made = _convert(Path(named))
        if made is not None:
            return made
    for store in _JAVA_STORES:
        if Path(store).is_file():
            return Path(store)
    bundle = next((path for path in map(Path, _PEM_BUNDLES) if path.is_file()), None)
    return _convert(bundle) if bundle is not None else None


def _convert(bundle: Path) -> Path | None:
    """Convert a PEM bundle to a trust store, cached by the bundle's content. None if it has no certificates."""
    text = bundle.read_text(encoding="utf-8", errors="replace")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    store = cache_folder() / f"trust-{digest}.jks"
    if store.is_file():
        return store
    certificates = pem_certificates(text)
    if not certificates:
        return None
    write_whole(store, java_key_store(certificates))
    return store


def pem_certificates(text: str) -> list[bytes]:
    """Return the distinct certificates of a PEM bundle, in DER. Text between them is skipped."""
    found: dict[bytes, None] = {}
    for part in text.split(_PEM_BEGIN)[1:]:
        body, end, _ = part.partition(_PEM_END)
        if end:
            found[ssl.PEM_cert_to_DER_cert(f"{_PEM_BEGIN}{body}{_PEM_END}")] = None
    return list(found)


def java_key_store(certificates: list[bytes]) -> bytes:
    """Build a Java key store (JKS, version 2) of trusted certificates, given in DER."""
    body = struct.pack(">III", _MAGIC, _FORMAT_VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"authority-{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # SHA-1 is what the format prescribes.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False)
    return body + digest.digest()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
