"""The state of a step in one slot: the tables of its key groups, and what it keeps once, from where they are stored.

What is stored is a log. Each micro-batch that changes anything adds one *version*: the rows that changed, by key group,
and for some key groups all of their rows, so that older versions are not needed for these. A small *head* says which
versions there are and in which of them each key group has its last whole rows. Writing costs by what changes: key
groups are written whole in turn, those first whose last time is longest ago, and only when the log has outgrown them.

A worker keeps the tables between micro-batches. What it keeps counts only if the head names the same version, with the
same digest, as the one that was reached or the one that was left; in the latter case the versions since are read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import xxhash

from penstock.errors import StateError
from penstock.state.blocks import Content, as_bytes, conformed
from penstock.state.expiring import expires_name, gone_rows, without_expired
from penstock.state.group_table import GroupTable, held_rows
from penstock.state.key_index import key_values
from penstock.state.slot_parts import SlotParts, StoredPart

__all__ = [
    "HEAD",
    "Entries",
    "Head",
    "Kept",
    "Memory",
    "Only",
    "SlotTables",
    "head_of",
    "needed_bytes",
    "piece_name",
    "stored_piece",
]

_FORMAT: Final = 2
HEAD: Final = "head"
"""The name of the entry without which nothing is stored."""
_HEADER: Final = "header"

# A log below this size, and of so few versions, is left alone.
_SMALL_BYTES: Final = 256 << 10
_FEW_VERSIONS: Final = 64
# Of a state beyond this size so many versions may gather, since writing all of it again takes long.
_LARGE_BYTES: Final = 4 << 20
_MANY_VERSIONS: Final = 512
# So many of the last steps of the log are told by their digests.
_RECENT: Final = 32
# In each micro-batch so many rows are looked at for what has expired.
_SWEPT_ROWS: Final = 8192
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


class Memory(Protocol):
    """The bound of memory that tables may take."""

    def relieve(self, tables: Mapping[int, GroupTable]) -> None:
        """Put tables on disk when they take too much."""


class _Version(msgspec.Struct, array_like=True):
    """One version of the log."""

    number: int
    pieces: int
    size: int


class _Group(msgspec.Struct, array_like=True):
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
    versions: list[_Version]
    groups: dict[int, _Group]
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


class Kept(msgspec.Struct):
    """What a worker keeps of a slot between micro-batches; `made` is what was made of its parts."""

    number: int
    digest: bytes
    header: bytes | None
    header_number: int
    tables: dict[int, GroupTable]
    made: dict[str, Any] = {}
    made_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        tables = sum(table.nbytes for table in self.tables.values())
        return tables + self.made_bytes + len(self.header or b"")


class Only(NamedTuple):
    """What is to be loaded of a slot: some key groups, and the pieces that have rows of them; None is all pieces."""

    groups: frozenset[int]
    pieces: frozenset[str] | None


class SlotTables:
    """The tables of the key groups that one task serves, by key group, and what it keeps once: header and parts.

    The header is small and may change in every micro-batch; what is large, or changes seldom, is one of the `parts`.
    `kept` is what the worker kept when it last had the slot. It is used up: whoever wants to keep the tables calls
    `keep` when they are stored. With `only` some tables are there, which may only be read.
    """

    def __init__(
        self,
        schema: pa.Schema,
        entries: Entries,
        kept: Kept | None = None,
        memory: Memory | None = None,
        only: Only | None = None,
    ) -> None:
        self._only: Final = only
        self._schema: Final = schema
        self._entries: Final = entries
        self._memory: Final = memory
        self._changes: dict[int, list[pa.RecordBatch]] = {}
        stored = entries.get(HEAD)
        self._head = Head(_FORMAT, 0, [], 0, [], {}) if stored is None else head_of(stored)
        self._tables: dict[int, GroupTable] = {}
        self._header: bytes | None = None
        self._header_changed = False
        self._moved = False
        self._clocks: Mapping[str, int] = {}
        since = self._load(kept)
        made = kept.made if kept is not None and since else {}
        self.parts: Final = SlotParts(entries, self._head.parts, made, since)

    # -- what the step sees --

    @property
    def header(self) -> bytes | None:
        """What the step keeps once for the whole slot."""
        return self._header

    def put_header(self, header: bytes | None) -> None:
        """Replace the header."""
        if header != self._header:
            self._header, self._header_changed = header, True

    def table(self, key_group: int) -> GroupTable:
        """The table of a key group."""
        found = self._tables.get(key_group)
        return GroupTable(self._schema) if found is None else found

    def put(self, key_group: int, changes: pa.RecordBatch) -> None:
        """Put changed rows into the table of a key group."""
        table = self._tables.get(key_group)
        if table is None:
            table = self._tables[key_group] = GroupTable(self._schema)
        table.upsert(changes)
        self._changes.setdefault(key_group, []).append(changes)

    @property
    def clock_ms(self) -> int | None:
        """The largest event time that the slot has seen; None before the first."""
        return self._head.clock_ms

    def advance_clock(self, time_ms: int) -> None:
        """Take note of an event time."""
        if self._head.clock_ms is None or time_ms > self._head.clock_ms:
            self._head.clock_ms, self._moved = time_ms, True

    def sweep(self, clocks: Mapping[str, int]) -> None:
        """Take out what has expired of the next few rows in turn, and of key groups that are then written whole.

        `clocks` gives the time now for each state that expires.
        """
        self._clocks = clocks
        if not clocks:
            return
        columns = [expires_name(state) for state in clocks]
        group, code = self._head.swept
        left = _SWEPT_ROWS
        turn = sorted(self._tables)
        start = bisect.bisect_left(turn, group)
        if start == len(turn) or turn[start] != group:
            code = 0
        for number in [*turn[start:], *turn[:start]]:
            table = self._tables[number]
            places, expires, following = table.stretch(code, left, columns)
            gone = places[gone_rows(expires, clocks)]
            if len(gone):
                self.put(number, without_expired(table.rows(gone), clocks))
            left -= expires.num_rows
            group, code = (number + 1, 0) if following is None else (number, following)
            if left <= 0:
                break
        if (group, code) != self._head.swept:
            self._head.swept, self._moved = (group, code), True

    @property
    def key_groups(self) -> int:
        """How many key groups hold keys."""
        return sum(table.keys > 0 for table in self._tables.values())

    @property
    def keys(self) -> int:
        """How many keys all tables hold."""
        return sum(table.keys for table in self._tables.values())

    @property
    def tables(self) -> dict[int, GroupTable]:
        """The tables of key groups that hold or held anything."""
        return self._tables

    @property
    def stored_bytes(self) -> int:
        """The size of what is stored: the log, with rows that later versions replace, the header and the parts."""
        log_bytes = sum(version.size for version in self._head.versions)
        return log_bytes + len(self._header or b"") + self.parts.stored_bytes

    # -- storing --

    @property
    def changed(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._changes) or self._header_changed or self._moved or self.parts.changed

    def store(self) -> None:
        """Store what has changed as one more version."""
        head = self._head
        head.number += 1
        digest = xxhash.xxh3_128(head.digest)
        if self._header_changed:
            self._store_header(head)
            # No header is not an empty one.
            digest.update(b"none" if self._header is None else b"some" + self._header)
        self.parts.store(head.number, digest)
        if self._changes:
            for piece in self._store_version(head):
                digest.update(piece)
        head.recent = [*head.recent[1 - _RECENT :], (head.number, digest.digest())]
        self._changes, self._header_changed, self._moved = {}, False, False
        self._entries.put(HEAD, msgspec.msgpack.encode(head))

    def keep(self) -> Kept:
        """What the worker may keep, once all is stored."""
        assert not self.changed
        if self._memory is not None:
            self._memory.relieve(self._tables)
        head = self._head
        made, made_bytes = self.parts.all_made, self.parts.kept_bytes
        return Kept(head.number, head.digest, self._header, head.header, self._tables, made, made_bytes)

    def _store_header(self, head: Head) -> None:
        if self._header is None:
            self._entries.remove(_HEADER)
        else:
            self._entries.put(_HEADER, self._header)
        head.header = head.number

    def _store_version(self, head: Head) -> list[bytes]:
        parts = {group: _together(parts) for group, parts in sorted(self._changes.items())}
        changed_bytes = sum(map(_stored_bytes, parts.values()))
        for group in parts:
            head.groups.setdefault(group, _Group()).changed = head.number
        # Where most of a table has changed, all of it takes hardly more room than the changes.
        whole = {g for g, part in parts.items() if 2 * part.num_rows >= self._tables[g].keys}
        whole |= self._due(head, whole, changed_bytes)
        for group in whole:
            parts[group] = self._current_rows(self._tables[group])
        pieces = [_packed(parts) for parts in _pieces(parts, whole)]
        for number, piece in enumerate(pieces):
            self._entries.put(piece_name(head.number, number), piece)
        for group in whole:
            known = head.groups[group]
            known.whole, known.size = head.number, _stored_bytes(parts[group])
            if not self._tables[group].keys:
                del head.groups[group], self._tables[group]
        head.versions.append(_Version(head.number, len(pieces), sum(map(len, pieces))))
        self._forget(head)
        return pieces

    def _current_rows(self, table: GroupTable) -> pa.RecordBatch:
        """All rows of a table, from which what has expired is taken out."""
        rows = table.all_rows()
        if self._clocks:
            gone = gone_rows(rows, self._clocks)
            if gone.any():
                table.upsert(without_expired(rows.filter(pa.array(gone)), self._clocks))
                rows = table.all_rows()
        return rows

    def _due(self, head: Head, whole: set[int], changed_bytes: int) -> set[int]:
        """The key groups that are to be written whole besides, since the log has outgrown them."""
        log_bytes = sum(version.size for version in head.versions)
        held_bytes = sum(group.size for group in head.groups.values())
        is_large = log_bytes > 2 * held_bytes + _SMALL_BYTES
        most = _MANY_VERSIONS if held_bytes > _LARGE_BYTES else _FEW_VERSIONS
        if not is_large and len(head.versions) < most:
            return set()
        budget = max(2 * changed_bytes if is_large else changed_bytes, _SMALL_BYTES)
        dirty = [g for g, known in head.groups.items() if known.changed > known.whole and g not in whole]
        due = set()
        for group in sorted(dirty, key=lambda g: (head.groups[g].whole, g)):
            if budget <= 0:
                break
            due.add(group)
            budget -= _stored_bytes(self._tables[group].all_rows())
        return due

    def _forget(self, head: Head) -> None:
        """Remove the versions that no key group needs any more."""
        holding = {known.whole for known in head.groups.values()}
        dirty = [known.whole for known in head.groups.values() if known.changed > known.whole]
        oldest = min(dirty, default=head.number)
        kept = []
        for version in head.versions:
            if version.number in holding or version.number > oldest:
                kept.append(version)
            else:
                for piece in range(version.pieces):
                    self._entries.remove(piece_name(version.number, piece))
        head.versions = kept

    # -- loading --

    def _load(self, kept: Kept | None) -> int:
        """Load what is not kept; gives the number of the version that was, 0 when nothing was."""
        head = self._head
        if kept is not None and (kept.number, kept.digest) in head.recent:
            since = kept.number
            self._tables = kept.tables
            self._header = kept.header
            header_number = kept.header_number
        else:
            since = header_number = 0
        if header_number != head.header:
            header = self._entries.get(_HEADER)
            self._header = None if header is None else bytes(header)
        if since == head.number:
            return since
        for group in [g for g in self._tables if g not in head.groups]:
            del self._tables[group]
        for version in head.versions:
            if version.number > since:
                self._read(version)
                if self._memory is not None:
                    self._memory.relieve(self._tables)
        return since

    def _read(self, version: _Version) -> None:
        groups = self._head.groups
        for number in range(version.pieces):
            name, only = piece_name(version.number, number), self._only
            if only is not None and only.pieces is not None and name not in only.pieces:
                continue
            wanted = None if only is None else only.groups
            for group, whole, rows in _unpacked(stored_piece(self._entries, name), self._schema, wanted):
                known = groups.get(group)
                if known is None or version.number < known.whole:
                    continue
                if only is not None:
                    # A copy, for otherwise a few rows would keep all of their piece in memory.
                    rows = rows.take(pa.array(range(rows.num_rows), pa.int32()))
                if whole:
                    self._tables[group] = GroupTable.of(rows)
                else:
                    table = self._tables.get(group)
                    if table is None:
                        table = self._tables[group] = GroupTable(self._schema)
                    table.upsert(rows)


def head_of(stored: Content) -> Head:
    """The head as it was stored. Raises StateError when it cannot be read."""
    try:
        found = msgspec.msgpack.decode(stored, type=_Formatted).format
        if found == _FORMAT:
            return msgspec.msgpack.decode(stored, type=Head)
    except msgspec.MsgspecError as e:
        raise StateError(f"The stored state of a step cannot be read: {e}.") from e
    raise StateError(
        f"The stored state has the format {found}; this penstock reads {_FORMAT}. Take a savepoint with the penstock "
        "that has written it, and begin from that with a new checkpoint."
    )


def piece_name(version: int, piece: int) -> str:
    """The name of the entry of a piece of a version."""
    return f"version/{version}/{piece}"


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Changes of one key group as one batch; of a key that changed twice the later row counts."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches(parts)
    last = {key: place for place, key in enumerate(key_values(rows.column(0)))}
    return rows.take(pa.array(sorted(last.values())))


def _stored_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of rows as they are stored, by which a replay must decide as before.

    What they take in memory depends on where they come from: a table that was kept may say which values are null where
    one that was loaded knows that none is.
    """
    return int(pa.ipc.get_record_batch_size(rows))


def _pieces(parts: Mapping[int, pa.RecordBatch], whole: set[int]) -> Iterator[list[_Part]]:
    """The rows of key groups, some of them whole, in pieces that are not too large."""
    waiting: list[_Part] = []
    size = 0
    for group, rows in sorted(parts.items()):
        fits = max(1, rows.num_rows * _PIECE_BYTES // max(_stored_bytes(rows), 1))
        for start in range(0, max(rows.num_rows, 1), fits):
            part = rows.slice(start, fits)
            part_bytes = _stored_bytes(part)
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


def _packed(parts: list[_Part]) -> bytes:
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


def _unpacked(stored: Content, schema: pa.Schema, only: frozenset[int] | None = None) -> Iterator[_Part]:
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
