"""What this process opens while something runs: files, and addresses that it asks for or connects to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_EVENTS = {"open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"}
_CODE = (sys.prefix, sys.base_prefix, *(str(Path(__file__).parents[2] / name) for name in ("src", "tests")))
_watchers: list[list[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watchers or event not in _EVENTS or not arguments:
        return
    what = arguments[1] if event == "socket.connect" else arguments[0]
    told = os.fsdecode(what) if isinstance(what, str | bytes | os.PathLike) else str(what)
    if told.startswith(_CODE):
        # What is imported when it is first needed.
        return
    for watcher in _watchers:
        watcher.append(told)


sys.addaudithook(_hear)


@contextmanager
def opened() -> Iterator[list[str]]:
    """The list to which all is added that is opened meanwhile. What libraries in Rust or C++ open is not seen."""
    heard: list[str] = []
    _watchers.append(heard)
    try:
        yield heard
    finally:
        _watchers.remove(heard)
