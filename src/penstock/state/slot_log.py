"""The log of a slot: a head that says which versions count, and pieces of rows, each stored as one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from penstock.errors import StateError
from penstock.state.group_table import held_rows
from penstock.state.slot_parts import StoredPart
from penstock.state.stored_blocks import Content, as_bytes, conformed

__all__ = [
    "HEAD",
    "LOG_FORMAT",
    "Entries",
    "Head",
    "LogGroup",
    "LogVersion",
    "head_of",
    "needed_bytes",
    "packed",
    "piece_name",
    "pieces_of",
    "rows_bytes",
    "stored_piece",
    "unpacked",
]


LOG_FORMAT: Final = 2
HEAD: Final = "head"
"""The name of the entry without which nothing is stored."""
# A version is stored in pieces of at most this size.
_PIECE_BYTES: Final = 8 << 20


class Entries(Protocol):
    """Where the state of a slot's step is stored: bytes by names."""

    def get(self, name: str) -> Content | None:
        """The bytes of a name, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""

    def remove(self, name: str) -> None:
        """Remove a name."""


class LogVersion(msgspec.Struct, array_like=True):
    """One version of the log."""

    number: int
    pieces: int
    size: int


class LogGroup(msgspec.Struct, array_like=True):
    """Where a key group stands: the version with its last whole rows and that of its last change, and their bytes."""

    whole: int = 0
    changed: int = 0
    size: int = 0


class Head(msgspec.Struct, array_like=True):
    """What is stored: versions, oldest first, and where each key group and the header stand.

    `recent` has the digest of each of the last numbers, oldest first. `clock_ms` is the largest event time of the slot,
    and `swept` the key group and the code up to which expired values were looked for. `parts` says where the parts
    stand.
    """

    format: int
    number: int
    recent: list[tuple[int, bytes]]
    header: int
    versions: list[LogVersion]
    groups: dict[int, LogGroup]
    clock_ms: int | None = None
    swept: tuple[int, int] = (0, 0)
    parts: dict[str, StoredPart] = {}

    @property
    def digest(self) -> bytes:
        """The digest of all that was stored so far."""
        return self.recent[-1][1] if self.recent else b""


class _Formatted(msgspec.Struct, array_like=True):
    """The beginning of a head in any format."""

    format: int


def head_of(stored: Content) -> Head:
    """The head as it was stored. Raises StateError when it cannot be read."""
    try:
        found = msgspec.msgpack.decode(stored, type=_Formatted).format
        if found == LOG_FORMAT:
            return msgspec.msgpack.decode(stored, type=Head)
    except msgspec.MsgspecError as e:
        raise StateError(f"The stored state of a step cannot be read: {e}.") from e
    raise StateError(
        f"The stored state has the format {found}; this penstock reads {LOG_FORMAT}. Take a savepoint with the "
        "penstock that has written it, and begin from that with a new checkpoint."
    )


def piece_name(version: int, piece: int) -> str:
    """The name of the entry of a piece of a version."""
    return f"version/{version}/{piece}"


def rows_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of rows as they are stored, by which a replay must decide as before.

    What they take in memory depends on where they come from: a table that was kept may say which values are null where
    one that was loaded knows that none is.
    """
    return int(pa.ipc.get_record_batch_size(rows))


def pieces_of(parts: Mapping[int, pa.RecordBatch], whole: set[int]) -> Iterator[list[_Part]]:
    """The rows of key groups, some of them whole, in pieces that are not too large."""
    waiting: list[_Part] = []
    size = 0
    for group, rows in sorted(parts.items()):
        fits = max(1, rows.num_rows * _PIECE_BYTES // max(rows_bytes(rows), 1))
        for start in range(0, max(rows.num_rows, 1), fits):
            part = rows.slice(start, fits)
            part_bytes = rows_bytes(part)
            if size and size + part_bytes > _PIECE_BYTES:
                yield waiting
                waiting, size = [], 0
            # What follows a first slice is put behind it.
            waiting.append(_Part(group, group in whole and start == 0, part))
            size += part_bytes
    yield waiting


class _Part(NamedTuple):
    """Rows of a key group in a version; `whole` says that they take the place of all that the group had."""

    group: int
    whole: bool
    rows: pa.RecordBatch


def packed(parts: list[_Part]) -> bytes:
    """Parts as an Arrow IPC stream of one batch; which rows are whose stands in its metadata."""
    batches = [part.rows for part in parts]
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    layout = msgspec.msgpack.encode([(part.group, part.whole, part.rows.num_rows) for part in parts])
    return as_bytes(batch.replace_schema_metadata({b"penstock.groups": layout}))


def stored_piece(entries: Entries, name: str) -> Content:
    """The bytes of a piece. Raises StateError when it is not there."""
    if (stored := entries.get(name)) is None:
        raise StateError(f"The version {name.split('/')[1]} of the stored state is not there.")
    return stored


def needed_bytes(head: Head, entries: Entries) -> dict[str, dict[int, int]]:
    """For each piece, by its name, the bytes of the rows that each key group still needs of it.

    Raises StateError when a piece is not there, or cannot be read.
    """
    found: dict[str, dict[int, int]] = {}
    for version in head.versions:
        for name in (piece_name(version.number, number) for number in range(version.pieces)):
            sizes = found[name] = {}
            for group, _, rows in _parts(stored_piece(entries, name)):
                known = head.groups.get(group)
                if known is not None and version.number >= known.whole:
                    sizes[group] = sizes.get(group, 0) + rows.nbytes
    return found


def _layout(schema: pa.Schema) -> list[tuple[int, bool, int]]:
    return msgspec.msgpack.decode(schema.metadata[b"penstock.groups"], type=list[tuple[int, bool, int]])


@contextmanager
def _told_as_unreadable() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, StopIteration, KeyError, TypeError, msgspec.MsgspecError) as e:
        raise StateError(f"A version of the stored state cannot be read: {e}.") from e


def unpacked(stored: Content, schema: pa.Schema, only: frozenset[int] | None = None) -> Iterator[_Part]:
    """The parts of a piece, or those of some key groups, as they are declared now."""
    for group, whole, part in _parts(stored):
        if only is not None and group not in only:
            continue
        rows = conformed(part, schema)
        if whole and not part.schema.equals(schema):
            # A key may have held only what is no longer declared.
            rows = rows.filter(pa.array(held_rows(rows)))
        yield _Part(group, whole, rows)


def _parts(stored: Content) -> Iterator[_Part]:
    """The parts of a piece as they are stored. Raises StateError when it cannot be read."""
    with _told_as_unreadable():
        reader = pa.ipc.open_stream(stored)
        batch = reader.read_next_batch()
        layout = _layout(reader.schema)
    start = 0
    for group, whole, count in layout:
        yield _Part(group, whole, batch.slice(start, count))
        start += count
