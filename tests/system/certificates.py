"""Certificates: a test authority and the certificates that it signs, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["Authority"]

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
_DAYS = "2"


class Authority:
    """A certificate authority; `certificate` is its own, in PEM, in a folder with all that it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._folder = folder
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        self._openssl(
            *("req", "-x509", *_KEY, "-nodes", "-days", _DAYS, "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def sign(self, name: str, alternatives: str = "", password: str = "") -> tuple[Path, Path]:
        """Sign a certificate, optionally for addresses; return it and its key, which may have a password."""
        certificate, key, request = (self._folder / f"{name}.{ending}" for ending in ("pem", "key", "csr"))
        protection = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        self._openssl(
            *("req", *_KEY, *protection, "-subj", f"/CN={name}"), *("-keyout", str(key), "-out", str(request))
        )
        extensions = self._folder / f"{name}.extensions"
        extensions.write_text(f"subjectAltName={alternatives}\n" if alternatives else "")
        self._openssl(
            *("x509", "-req", "-in", str(request), "-days", _DAYS, "-extfile", str(extensions)),
            *("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-out", str(certificate)),
        )
        return certificate, key

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
