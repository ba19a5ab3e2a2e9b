"""Transactions: how a store reads and writes its database, by itself or through a change log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa

from penstock.server.store.engine import reading, writing

__all__ = ["EngineTransactions", "Transactions"]

_Result = TypeVar("_Result")


class Transactions(Protocol):
    """The database of a store. Transactions have one order, the same for all servers. Methods raise StoreError."""

    def reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Open a transaction that only reads, and sees all that was written before."""

    def write(self, act: Callable[[sa.Connection], _Result]) -> _Result:
        """Carry out a transaction. It may be called again, if another one has come first."""

    def lease_unchanged_ms(self) -> int | None:
        """Return for how long this process has seen the leader's lease unchanged; None where its end counts."""

    def close(self) -> None:
        """Close all connections."""


class EngineTransactions:
    """Transactions of a database that orders them by itself: SQLite in a file, or PostgreSQL."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine: Final = engine

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads."""
        with reading(self._engine) as connection:
            yield connection

    def write(self, act: Callable[[sa.Connection], _Result]) -> _Result:
        """Carry out a transaction, once. On SQLite, it waits for other writers."""
        with writing(self._engine) as connection:
            return act(connection)

    def lease_unchanged_ms(self) -> int | None:
        """Return None: the lease ends by the clock of the database, or of the one machine."""
        return None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
