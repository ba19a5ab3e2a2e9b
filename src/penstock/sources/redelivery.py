"""Redelivery: recognise messages that are already in the journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

__all__ = ["JournaledMessages", "message_digest"]

_DIGEST_BYTES: Final = 16
_REMEMBERED: Final = 100_000


def message_digest(message_id: str, body: bytes) -> bytes:
    """Return 16 bytes that identify a message by its id and its content, since not all programs keep ids unique."""
    name = message_id.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(len(name).to_bytes(4, "big") + name + body, digest_size=_DIGEST_BYTES).digest()


class JournaledMessages:
    """The digests of the last messages with an id that were journaled.

    Args:
        notes: the notes of the journal's blocks, newest first; each has the digests of its block.
        remembered: how many digests are kept; the oldest are forgotten first.

    """

    def __init__(self, notes: Iterable[bytes] = (), remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        newest_first: list[bytes] = []
        for note in notes:
            newest_first += reversed(
                [note[at : at + _DIGEST_BYTES] for at in range(0, len(note), _DIGEST_BYTES)]
            )
            if len(newest_first) >= remembered:
                break
        # A dict keeps the order of insertion, which here is the order of the journal.
        self._digests: dict[bytes, None] = {}
        self.add(reversed(newest_first[:remembered]))

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def add(self, digests: Iterable[bytes]) -> None:
        """Remember messages that are now durable."""
        for digest in digests:
            self._digests.pop(digest, None)
            self._digests[digest] = None
        while len(self._digests) > self._remembered:
            del self._digests[next(iter(self._digests))]
