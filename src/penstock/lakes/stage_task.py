"""Stage task: a task of a sink for tables, which stages files and tells the commit of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

import msgspec
import pyarrow as pa

__all__ = ["Stage", "StageTask", "files_of"]

_File = TypeVar("_File")


class Stage(Protocol):
    """The files of one task, which no commit names yet."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records."""

    def finish(self) -> Sequence[msgspec.Struct]:
        """Complete all files, durably, and return them."""

    def discard(self) -> None:
        """Remove all files. Never raises."""


class StageTask:
    """A task that writes files, and tells the commit of them.

    Args:
        stage: where it writes them.
        as_sentences: turns errors of the library and the file system into those of penstock.

    """

    def __init__(self, stage: Stage, as_sentences: Callable[[], AbstractContextManager[None]]) -> None:
        self._stage: Final = stage
        self._as_sentences: Final = as_sentences

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # tables have no keys
        """Take records."""
        with self._as_sentences():
            self._stage.add(batch)

    def finish(self) -> bytes:
        """Complete the files, and return the message for the commit; empty if there are none."""
        with self._as_sentences():
            files = self._stage.finish()
        return msgspec.msgpack.encode(files) if files else b""

    def abort(self) -> None:
        """Remove the files."""
        self._stage.discard()


def files_of(messages: Sequence[bytes], kind: type[_File]) -> list[_File]:
    """Return the files in the messages of tasks."""
    decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]  # a type that is a value
    return [file for message in messages if message for file in decoder.decode(message)]
