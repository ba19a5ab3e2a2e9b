"""Store client: the operations of a kind of store on objects, by their whole names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from penstock.errors import PenstockError

__all__ = ["FoundObject", "StoreClient"]


@dataclass(frozen=True)
class FoundObject:
    """An object in a list: its name, its size, and when it was written, in nanoseconds since 1970."""

    name: str
    size: int
    modified_ns: int


class StoreClient(Protocol):
    """One kind of store.

    Methods raise FileNotFoundError when there is no object of a name, and otherwise the errors of the store's library:
    `error_of` turns them into sentences.
    """

    def put(self, path: str, content: IO[bytes]) -> None:
        """Write an object, which is there whole or not at all; one of the same name is replaced."""

    def create(self, path: str, content: bytes) -> bool:
        """Write an object unless one of this name is there; return whether it was written.

        False may also mean that the same was written before, by a request whose answer was lost.
        """

    def read(self, path: str) -> bytes:
        """Return the content of an object."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object's content."""

    def copy(self, path: str, file: IO[bytes]) -> None:
        """Copy the content of an object to a file."""

    def size(self, path: str) -> int:
        """Return the size of an object in bytes."""

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, if they are there."""

    def remove_unfinished(self, path: str) -> None:
        """Remove the remains of writes below a prefix that were broken off long ago."""

    def objects(self, path: str, after: str) -> Iterator[FoundObject]:
        """Return the objects in a folder, "" for all, whose names sort after another one."""

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder, without it."""

    def error_of(self, error: BaseException, what: str) -> PenstockError:
        """Return an error, which shows no secrets, for one of the library's. `what` is the sentence so far.

        It is PlaceMissingError when there is no bucket, BindingError when access is denied, and ExternalSystemError
        otherwise. An error that is not of a store, such as an interrupt, is raised again.
        """
