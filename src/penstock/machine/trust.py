"""Trust: the authorities that a Java from PyPI should trust, those of this machine.

Such a Java knows the public authorities only. Behind a proxy or in a company that signs with an authority of its own
it could fetch nothing, although every other program on the machine can.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path
from typing import Final

from penstock.machine.cache import cache_folder

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

# The Java key store format (JKS), as Java reads it without a tool's help: a header, one entry for each trusted
# certificate, and a keyed digest. Its password is the one that Java's own store has; it protects nothing secret.
_MAGIC: Final = 0xFEEDFEED
_FORMAT_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_PASSWORD: Final = "changeit"  # noqa: S105  # Java's own default; the store holds public certificates
_SALT: Final = b"Mighty Aphrodite"


def system_trust_store() -> Path | None:
    """A trust store for Java: from SSL_CERT_FILE, else the system's for Java, else from the system's bundle."""
    named = os.environ.get("SSL_CERT_FILE")
    if named and Path(named).is_file():
        made = _converted(Path(named))
        if made is not None:
            return made
    for store in _JAVA_STORES:
        if Path(store).is_file():
            return Path(store)
    bundle = next((path for path in map(Path, _PEM_BUNDLES) if path.is_file()), None)
    return _converted(bundle) if bundle is not None else None


def _converted(bundle: Path) -> Path | None:
    """The trust store with a PEM bundle's certificates, in the cache by the bundle's content; None when it has none."""
    text = bundle.read_text(encoding="utf-8", errors="replace")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    store = cache_folder() / f"trust-{digest}.jks"
    if store.is_file():
        return store
    certificates = pem_certificates(text)
    if not certificates:
        return None
    temporary = store.with_name(f".{store.name}.{os.getpid()}")
    temporary.write_bytes(java_key_store(certificates))
    temporary.replace(store)
    return store


def pem_certificates(text: str) -> list[bytes]:
    """The certificates of a PEM bundle, each in DER, once; what lies between them is skipped."""
    found: dict[bytes, None] = {}
    for part in text.split(_PEM_BEGIN)[1:]:
        body, end, _ = part.partition(_PEM_END)
        if end:
            found[ssl.PEM_cert_to_DER_cert(f"{_PEM_BEGIN}{body}{_PEM_END}")] = None
    return list(found)


def java_key_store(certificates: list[bytes]) -> bytes:
    """A Java key store (JKS, version 2) that holds trusted certificates, given in DER."""
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
