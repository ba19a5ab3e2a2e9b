"""A real server for tests that emulates Azure Blob Storage: Azurite, from npm into the cache."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
from pathlib import Path
from typing import Final

import httpx
from npm_packages import npm_program

from penstock.machine.local_server import LocalServer, free_port, listens

__all__ = ["AzureServer"]

_VERSION: Final = "3.37.0"
# Azurite's only account, whose key is public and fixed.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API: Final = "2021-08-06"


class AzureServer(LocalServer):
    """One server, never killed, since it saves its object list only now and then; a context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__("azurite", folder / "azurite.log")
        self._port = free_port()
        program = npm_program("azurite", _VERSION, "dist/src/blob/main.js")
        place = [
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(self._port),
            "--location",
            str(folder / "azurite"),
        ]
        self._command = [
            "node",
            str(program),
            *place,
            "--silent",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a job needs to read and write here."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self._port}/{_ACCOUNT}",
        }

    def start(self) -> None:
        """Start the server and wait until it listens."""
        self.launch(self._command, lambda: listens(self._port))

    def make_container(self, name: str) -> None:
        """Make a container, by a request signed with the shared key."""
        date = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        path = f"/{_ACCOUNT}/{name}"
        headers = {"x-ms-date": date, "x-ms-version": _API}
        signed = "\n".join(["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items())])
        text = f"{signed}\n/{_ACCOUNT}{path}\nrestype:container"
        digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        httpx.put(
            f"http://127.0.0.1:{self._port}{path}?restype=container",
            headers={**headers, "Content-Length": "0"},
        ).raise_for_status()
