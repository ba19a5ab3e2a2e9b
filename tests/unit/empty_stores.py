"""Stores of a server for tests, whose tables are made once: migrations take longer than most tests of a server."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import sqlalchemy as sa

from penstock.server.store import engine
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

__all__ = ["connect_to_empty", "open_store"]


def open_store(path: Path) -> Store:
    """Open an empty store in a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600, exist_ok=False)
    path.write_bytes(_empty())
    return Store.open(sqlite_url(path))


def connect_to_empty(url: str) -> sa.Engine:
    """Do what `connect` does for a new file, without migrations."""
    path = Path(url.removeprefix("sqlite:///"))
    path.touch(0o600)
    path.write_bytes(_empty())
    return engine._engine(url)


@functools.cache
def _empty() -> bytes:
    """The file of an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        Store.open(sqlite_url(path)).close()
        return path.read_bytes()
