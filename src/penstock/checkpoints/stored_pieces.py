"""Stored pieces: the content of files from the objects in which the store has it, as tasks read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.checkpoints.stored_entries import LOG, Piece, StoredFile, decode_entry, digest_of
from penstock.errors import CheckpointError
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.objects.object_stores import Place

__all__ = ["StoredPieces"]


@dataclass
class StoredPieces:
    """A reader of files below a place. Several may be in one entry of the log, which is cached while they are read."""

    objects: ObjectFolder
    _kept: tuple[str, memoryview] = field(default=("", memoryview(b"")), init=False)

    @classmethod
    def below(cls, place: Place, settings: Mapping[str, str]) -> StoredPieces:
        """Return a reader of files below a place of a store, with settings as in ObjectFolder."""
        root = Place(place.scheme, place.host, place.name.rstrip("/"))
        return cls(ObjectFolder(root, settings, AT_WORK))

    def content(self, file: StoredFile) -> bytes:
        """Return the content of a file. Raises CheckpointError for damage."""
        return b"".join(map(self._content, file.pieces))

    def _content(self, piece: Piece) -> bytes | memoryview:
        if piece.object.startswith(f"{LOG}/"):
            if self._kept[0] != piece.object:
                shown = f"{self.objects.place.shown}/{piece.object}"
                self._kept = piece.object, decode_entry(self.objects.read(piece.object), shown)[1]
            found: bytes | memoryview = self._kept[1][piece.offset : piece.offset + piece.length]
        else:
            found = self.objects.read_range(piece.object, piece.offset, piece.length)
        if len(found) != piece.length or digest_of(found) != piece.digest:
            raise CheckpointError(
                f"The checkpoint is damaged: the object {piece.object} in {self.objects.place.shown} has changed "
                "bytes. Restore the object from a copy, or start from a savepoint with another checkpoint."
            )
        return found
