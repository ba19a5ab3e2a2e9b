"""The log of a slot: a head that lists the valid versions, and pieces of rows; each is stored as one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from penstock.errors import StateError
from penstock.state.group_table import held_rows
from penstock.state.slot_parts import StoredPart
from penstock.state.stored_blocks import Content, Entries, as_bytes, conform

__all__ = [
    "HEAD",
    "LOG_FORMAT",
    "Head",
    "LogGroup",
    "LogVersion",
    "NewVersion",
    "head_of",
    "needed_bytes",
    "pack",
    "piece_name",
    "piece_rows",
    "pieces_of",
    "rows_bytes",
    "stored_piece",
    "unpack",
    "with_own_memory",
]


LOG_FORMAT: Final = 2
HEAD: Final = "head"
"""The name of the head's entry. Without it, nothing is stored."""
# A version is stored in pieces of at most this size.
_PIECE_BYTES: Final = 8 << 20


class LogVersion(msgspec.Struct, array_like=True):
    """One version of the log."""

    number: int
    pieces: int
    size: int


class LogGroup(msgspec.Struct, array_like=True):
    """The position of a key group: the versions of its last full copy and last change, and the size of that copy."""

    whole: int = 0
    changed: int = 0
    size: int = 0


class NewVersion(NamedTuple):
    """A version that is being stored: its entries, its rows by key group, its running digest, and the head's clock."""

    entries: Entries
    changes: dict[int, list[pa.RecordBatch]]
    digest: xxhash.xxh3_128
    clock_ms: int | None
    swept: tuple[int, int]


class Head(msgspec.Struct, array_like=True):
    """The index of the log: its versions, oldest first, and the positions of key groups, header and parts.

    Attributes:
        format: the format of the log.
        number: the number of the last version.
        recent: the numbers and digests of the last versions, oldest first.
        header: the number of the version in which the header last changed.
        versions: the stored versions, oldest first.
        groups: the position of each key group.
        clock_ms: the largest event time of the slot; None before the first.
        swept: the key group and the code up to which expired values were removed.
        parts: the position of each part.

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
        """The digest of everything stored so far."""
        return self.recent[-1][1] if self.recent else b""


class _Formatted(msgspec.Struct, array_like=True):
    """The first field of a head in any format."""

    format: int


def head_of(stored: Content) -> Head:
    """Decode a stored head. Raises StateError when it cannot be read."""
    try:
        found = msgspec.msgpack.decode(stored, type=_Formatted).format
        if found == LOG_FORMAT:
            return msgspec.msgpack.decode(stored, type=Head)
    except msgspec.MsgspecError as e:
        raise StateError(f"The stored state of a step cannot be read: {e}.") from e
    raise StateError(
        f"The stored state has the format {found}; this penstock reads {LOG_FORMAT}. Take a savepoint with the "
        "penstock that wrote it, and start from the savepoint with a new checkpoint."
    )


def piece_name(version: int, piece: int) -> str:
    """Return the entry name of a piece of a version."""
    return f"version/{version}/{piece}"


def rows_bytes(rows: pa.RecordBatch) -> int:
    """Return the stored size of rows. A replay must make the same decisions, so they may depend only on this size.

    The size in memory depends on where rows come from: a cached table may have a validity bitmap where a loaded one
    knows that no value is null.
    """
    return int(pa.ipc.get_record_batch_size(rows))


def with_own_memory(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Copy rows into buffers of their own.

    A slice shares the buffers of its neighbours, and Arrow may store up to 63 bytes of these with it. A table that was
    loaded and one that was kept must be stored as the same bytes.
    """
    return pa.concat_batches([rows])


def pieces_of(parts: Mapping[int, pa.RecordBatch], whole: set[int]) -> Iterator[list[_Part]]:
    """Yield the rows of key groups in pieces of limited size; those in `whole` replace all rows of their key group."""
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
            # The slices after the first are appended to it.
            waiting.append(_Part(group, group in whole and start == 0, part))
            size += part_bytes
    yield waiting


class _Part(NamedTuple):
    """Rows of a key group in a version; if `whole`, they replace all earlier rows of the group."""

    group: int
    whole: bool
    rows: pa.RecordBatch


def pack(parts: list[_Part]) -> bytes:
    """Encode parts as an Arrow IPC stream of one batch, whose metadata assigns rows to key groups."""
    batches = [part.rows for part in parts]
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    layout = msgspec.msgpack.encode([(part.group, part.whole, part.rows.num_rows) for part in parts])
    return as_bytes(batch.replace_schema_metadata({b"penstock.groups": layout}))


def stored_piece(entries: Entries, name: str) -> Content:
    """Return the bytes of a piece. Raises StateError when it is missing."""
    if (stored := entries.get(name)) is None:
        raise StateError(f"The version {name.split('/')[1]} of the stored state is missing.")
    return stored


def needed_bytes(head: Head, entries: Entries) -> dict[str, dict[int, int]]:
    """Return, by piece name, the bytes of the rows that each key group still needs from the piece.

    Raises StateError when a piece is missing or cannot be read.
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


@contextmanager
def _raise_state_errors() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, StopIteration, KeyError, TypeError, msgspec.MsgspecError) as e:
        raise StateError(f"A version of the stored state cannot be read: {e}.") from e


def unpack(stored: Content, schema: pa.Schema, only: frozenset[int] | None = None) -> Iterator[_Part]:
    """Yield the parts of a piece, or those of some key groups, converted to the current declaration."""
    for group, whole, part in _parts(stored):
        if only is not None and group not in only:
            continue
        rows = conform(part, schema)
        if whole and not part.schema.equals(schema):
            # A key may have had values only in states that are no longer declared.
            rows = rows.filter(pa.array(held_rows(rows)))
        yield _Part(group, whole, with_own_memory(rows))


def _parts(stored: Content) -> Iterator[_Part]:
    """Yield the parts of a piece as they are stored. Raises StateError when it cannot be read."""
    batch, layout = piece_rows(stored)
    start = 0
    for group, whole, count in layout:
        yield _Part(group, whole, batch.slice(start, count))
        start += count


def piece_rows(stored: Content) -> tuple[pa.RecordBatch, list[tuple[int, bool, int]]]:
    """Return the rows of a piece as they are stored, and its parts: key group, whether it is whole, number of rows.

    Raises StateError when the piece cannot be read.
    """
    with _raise_state_errors():
        reader = pa.ipc.open_stream(stored)
        batch = reader.read_next_batch()
        layout = msgspec.msgpack.decode(
            reader.schema.metadata[b"penstock.groups"], type=list[tuple[int, bool, int]]
        )
    return batch, layout
