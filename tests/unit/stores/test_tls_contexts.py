"""Certificates and keys of stores that cannot be used are refused before anything connects."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.errors import BindingError
from penstock.stores.tls_contexts import tls_context

PLACES = [
    "rediss://h:1/0/{id}?",
    "cassandra://h:1/keys/rows?",
    "opensearch://h:1/rows?id={id}&",
]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, whose key has a password."""
    folder = tmp_path_factory.mktemp("certificates")
    names = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-subj", "/CN=h"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:abcd", *names],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_files_that_cannot_be_used_are_told(place: str, encrypted: Path) -> None:
    """Nobody is asked for the password of a key."""
    for query in (
        "cafile=/not/there.pem",
        f"cafile={encrypted}",
        f"certfile={encrypted}/cert.pem&keyfile={encrypted}/key.pem",
    ):
        binding: Any = parse_binding("latest", place + query, "sink")
        with pytest.raises(BindingError, match="certificates or the key cannot be read"):
            tls_context(binding)
