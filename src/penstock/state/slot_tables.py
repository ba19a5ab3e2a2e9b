"""The state of a step in one slot: the tables of its key groups and the data that it keeps once, loaded from storage.

The storage is a log. Each micro-batch with changes adds one *version*: the changed rows by key group, and for some key
groups a full copy of their rows, which makes older versions unnecessary for these. A small *head* lists the versions
and the version with the last full copy of each key group. The cost of writing depends on the changes: full copies are
written in turn, the key group with the oldest copy first, and only when the log has outgrown the tables.

A worker caches the tables between micro-batches. The cache is valid only if the head names its version with the same
digest, as the current version or as a recent one; in the latter case the newer versions are read.
"""

from __future__ import annotations

import bisect
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import xxhash

from penstock.state.expiry import expired_rows, expires_name, without_expired
from penstock.state.frozen_values import FrozenValues
from penstock.state.group_table import GroupTable
from penstock.state.merged_table import MergedTable, merge_changes
from penstock.state.open_values import OpenValues
from penstock.state.row_cache import GroupsOf, RowCache
from penstock.state.slot_log import (
    HEAD,
    LOG_FORMAT,
    Head,
    LogGroup,
    LogVersion,
    NewVersion,
    head_of,
    pack,
    piece_name,
    pieces_of,
    rows_bytes,
    stored_piece,
    unpack,
    with_own_memory,
)
from penstock.state.slot_parts import SlotParts
from penstock.state.stored_blocks import Entries

__all__ = ["CachedSlot", "Memory", "Only", "SlotTables"]

_HEADER: Final = "header"

# A log below this size and number of versions is left alone.
_SMALL_BYTES: Final = 256 << 10
_FEW_VERSIONS: Final = 64
# Beyond this size of the state the log may have this many versions, since rewriting the state takes long.
_LARGE_BYTES: Final = 4 << 20
_MANY_VERSIONS: Final = 512
# The head has the digests of this many of the last versions.
_RECENT: Final = 32
# This many key groups of a version that is stored in pieces are packed at once: about a millisecond's work.
_GROUPS_AT_ONCE: Final = 4
# Each micro-batch checks this many rows for expired values.
_SWEPT_ROWS: Final = 8192


class Memory(Protocol):
    """The memory limit of tables."""

    def relieve(self, tables: Mapping[int, GroupTable]) -> None:
        """Move tables to disk when they exceed the limit."""


class CachedSlot(msgspec.Struct):
    """The data of a slot that a worker caches between micro-batches; `made` are the objects built from its parts."""

    number: int
    digest: bytes
    header: bytes | None
    header_number: int
    tables: dict[int, GroupTable]
    made: dict[str, Any] = {}
    made_bytes: int = 0
    row_cache: RowCache | None = None
    opened: OpenValues | None = None

    @property
    def nbytes(self) -> int:
        """The approximate memory of the slot, in bytes."""
        tables = sum(table.nbytes for table in self.tables.values())
        cached = sum(0 if one is None else one.nbytes for one in (self.row_cache, self.opened))
        return tables + cached + self.made_bytes + len(self.header or b"")


class Only(NamedTuple):
    """A selection of a slot to load: some key groups, and the pieces with their rows; None means all pieces."""

    groups: frozenset[int]
    pieces: frozenset[str] | None


class SlotTables:
    """The tables of one task's key groups, by key group, and the data that it keeps once: header and parts.

    The header is small and may change in every micro-batch; data that is large or seldom changes is one of the `parts`.
    `kept` is the cache from when the worker last had the slot. It is consumed: to cache the tables again, call `keep`
    after they are stored. With `only`, just the selected tables are loaded, and they must not be changed.
    """

    def __init__(
        self,
        schema: pa.Schema,
        entries: Entries,
        kept: CachedSlot | None = None,
        memory: Memory | None = None,
        only: Only | None = None,
    ) -> None:
        self._only: Final = only
        self._schema: Final = schema
        self._entries = entries
        self._memory: Final = memory
        self._changes: dict[int, list[pa.RecordBatch]] = {}
        stored = entries.get(HEAD)
        self._head = Head(LOG_FORMAT, 0, [], 0, [], {}) if stored is None else head_of(stored)
        self._tables: dict[int, GroupTable] = {}
        self._row_cache: RowCache | None = None
        # Values that equal the rows of the tables, until a merged table exists.
        self._opened: OpenValues | None = None
        self._merged: MergedTable | None = None
        # The remaining work on the version that is being stored.
        self._storing: Iterator[None] | None = None
        self._header: bytes | None = None
        self._header_changed = False
        self._moved = False
        self._clocks: Mapping[str, int] = {}
        since = self._load(kept)
        made = kept.made if kept is not None and since else {}
        self.parts: Final = SlotParts(entries, self._head.parts, made, since)

    # -- the step's view --

    @property
    def header(self) -> bytes | None:
        """The small data that the step keeps once for the whole slot."""
        return self._header

    def put_header(self, header: bytes | None) -> None:
        """Replace the header."""
        if header != self._header:
            self._header, self._header_changed = header, True

    def table(self, key_group: int) -> GroupTable:
        """Return the table of a key group."""
        found = self._tables.get(key_group)
        return GroupTable(self._schema) if found is None else found

    def put(self, key_group: int, changes: pa.RecordBatch) -> None:
        """Put changed rows into the table of a key group."""
        self.finish()
        self._opened = None
        self._put(key_group, changes, self._changes)
        if self._row_cache is not None:
            self._row_cache.put(changes)

    def _put(self, key_group: int, changes: pa.RecordBatch, noted: dict[int, list[pa.RecordBatch]]) -> None:
        table = self._tables.get(key_group)
        if table is None:
            table = self._tables[key_group] = GroupTable(self._schema)
        table.upsert(changes)
        noted.setdefault(key_group, []).append(changes)

    def merged(self, groups_of: GroupsOf) -> MergedTable:
        """Return the table of all key groups, to be used instead of theirs until `settle`."""
        if self._merged is None:
            if self._row_cache is None:
                self._row_cache = RowCache(self._schema, self._tables)
            opened, self._opened = self._opened, None
            self._merged = MergedTable(
                self._schema, self._tables, self._row_cache, groups_of, opened, self.finish
            )
        return self._merged

    def settle(self) -> None:
        """Put the changes of the merged table, if there is one, into the tables of the key groups."""
        self.finish()
        if self._merged is not None:
            merged, self._merged = self._merged, None
            changes = merged.take_changes()
            self._opened = merged.release()
            for group, rows in changes.items():
                self._put(group, rows, self._changes)
            if changes and self._row_cache is not None:
                self._row_cache.put(pa.concat_batches(list(changes.values())))

    @property
    def clock_ms(self) -> int | None:
        """The largest event time that the slot has seen; None before the first."""
        return self._head.clock_ms

    def advance_clock(self, time_ms: int) -> None:
        """Advance the clock to an event time, if that is later."""
        if self._head.clock_ms is None or time_ms > self._head.clock_ms:
            self._head.clock_ms, self._moved = time_ms, True

    def sweep(self, clocks: Mapping[str, int]) -> None:
        """Remove expired values from the next rows in turn, and from the key groups that are next written in full.

        `clocks` has the current time of each state with a TTL.
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
            places, expires, following = table.scan(code, left, columns)
            gone = places[expired_rows(expires, clocks)]
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
        """The number of key groups with keys, without the changes of a merged table that is not settled."""
        return sum(table.keys > 0 for table in self._tables.values())

    @property
    def keys(self) -> int:
        """The number of keys in all tables, without the changes of a merged one that is not settled."""
        return sum(table.keys for table in self._tables.values())

    @property
    def tables(self) -> dict[int, GroupTable]:
        """The tables of key groups that have or had state."""
        return self._tables

    @property
    def stored_bytes(self) -> int:
        """The stored size: the log, including rows that later versions replace, the header and the parts."""
        log_bytes = sum(version.size for version in self._head.versions)
        return log_bytes + len(self._header or b"") + self.parts.stored_bytes

    # -- storing --

    @property
    def changed(self) -> bool:
        """Whether there are changes to store."""
        is_merged = self._merged is not None and self._merged.has_changes
        return is_merged or bool(self._changes) or self._header_changed or self._moved or self.parts.changed

    def store(self) -> None:
        """Store the changes as a new version."""
        self.freeze()
        self.finish()

    def freeze(self) -> None:
        """Begin to store the changes as a new version, which `pieces` or `finish` does.

        Open values that have changed are only noted. Rounds may continue; `go_on` gives them new entries for their own
        changes.
        """
        self.finish()
        frozen = None if self._merged is None else self._merged.freeze()
        if frozen is None:
            self.settle()
        head = self._head
        head.number += 1
        digest = xxhash.xxh3_128(head.digest)
        if self._header_changed:
            self._store_header(head)
            # A missing header differs from an empty one.
            digest.update(b"none" if self._header is None else b"some" + self._header)
        self.parts.store(head.number, digest)
        version = NewVersion(self._entries, self._changes, digest, head.clock_ms, head.swept)
        self._changes, self._header_changed, self._moved = {}, False, False
        self._storing = self._store_version(version, frozen)

    def pieces(self) -> Iterator[None]:
        """Store the frozen values, in pieces that take a few milliseconds each at most."""
        # Not `yield from`: a caller that stops iterating would end the storing.
        for _ in self._storing or ():
            yield

    def finish(self) -> None:
        """Store the rest of the frozen values."""
        for _ in self.pieces():
            pass

    def go_on(self, entries: Entries) -> None:
        """Store later changes in these entries."""
        self._entries = entries
        self.parts.go_on(entries)

    def relieve(self) -> None:
        """Enforce the memory limit. Call it after everything is stored."""
        if self._memory is not None:
            self._memory.relieve(self._tables)

    def keep(self) -> CachedSlot:
        """Return the data that the worker may cache. Call it after everything is stored."""
        assert not self.changed
        self.settle()
        self.relieve()
        head = self._head
        made, made_bytes = self.parts.loaded, self.parts.kept_bytes
        return CachedSlot(
            head.number,
            head.digest,
            self._header,
            head.header,
            self._tables,
            made,
            made_bytes,
            self._row_cache,
            self._opened,
        )

    def _store_header(self, head: Head) -> None:
        if self._header is None:
            self._entries.remove(_HEADER)
        else:
            self._entries.put(_HEADER, self._header)
        head.header = head.number

    def _store_version(self, version: NewVersion, frozen: FrozenValues | None) -> Iterator[None]:
        head, entries = self._head, version.entries
        if frozen is not None:
            yield from self._thaw(frozen, version.changes)
        if version.changes:
            pieces = yield from self._pack(version.changes)
            for number, piece in enumerate(pieces):
                entries.put(piece_name(head.number, number), piece)
                version.digest.update(piece)
            self._forget(head, entries)
        head.recent = [*head.recent[1 - _RECENT :], (head.number, version.digest.digest())]
        # Rounds that continued may have moved the clock.
        stored = msgspec.structs.replace(head, clock_ms=version.clock_ms, swept=version.swept)
        entries.put(HEAD, msgspec.msgpack.encode(stored))
        self._storing = None

    def _thaw(self, frozen: FrozenValues, changes: dict[int, list[pa.RecordBatch]]) -> Iterator[None]:
        """Make rows of frozen values, and put them into the tables."""
        merged, cache = self._merged, self._row_cache
        assert merged is not None
        assert cache is not None
        for some in frozen.by_group(merged.groups_of, self.table, cache):
            for group, rows in some:
                self._put(group, rows, changes)
            yield
        merged.end_frozen()

    def _pack(self, changes: Mapping[int, list[pa.RecordBatch]]) -> Generator[None, None, list[bytes]]:
        """Note changes of the newest version in the head, and return its pieces."""
        head = self._head
        parts = {}
        for number, (group, rows) in enumerate(sorted(changes.items())):
            if number % _GROUPS_AT_ONCE == 0:
                yield
            parts[group] = with_own_memory(merge_changes(rows))
            head.groups.setdefault(group, LogGroup()).changed = head.number
        changed_bytes = sum(map(rows_bytes, parts.values()))
        # If most of a table has changed, a full copy takes hardly more space than the changes.
        whole = {g for g, part in parts.items() if 2 * part.num_rows >= self._tables[g].keys}
        whole |= self._due(head, whole, changed_bytes)
        for number, group in enumerate(whole):
            if number % _GROUPS_AT_ONCE == 0:
                yield
            parts[group] = self._current_rows(self._tables[group])
        pieces = []
        for piece in pieces_of(parts, whole):
            yield
            pieces.append(pack(piece))
        yield
        for group in whole:
            known = head.groups[group]
            known.whole, known.size = head.number, rows_bytes(parts[group])
            if not self._tables[group].keys:
                del head.groups[group], self._tables[group]
        head.versions.append(LogVersion(head.number, len(pieces), sum(map(len, pieces))))
        return pieces

    def _current_rows(self, table: GroupTable) -> pa.RecordBatch:
        """Remove expired values from a table, and return all its rows."""
        rows = table.all_rows()
        if self._clocks:
            gone = expired_rows(rows, self._clocks)
            if gone.any():
                left = without_expired(rows.filter(pa.array(gone)), self._clocks)
                table.upsert(left)
                self._opened = None
                if self._row_cache is not None:
                    self._row_cache.put(left)
                rows = table.all_rows()
        return rows

    def _due(self, head: Head, whole: set[int], changed_bytes: int) -> set[int]:
        """Return further key groups to write in full, since the log has outgrown the tables."""
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
            budget -= rows_bytes(self._tables[group].all_rows())
        return due

    def _forget(self, head: Head, entries: Entries) -> None:
        """Remove the versions that no key group needs anymore."""
        holding = {known.whole for known in head.groups.values()}
        dirty = [known.whole for known in head.groups.values() if known.changed > known.whole]
        oldest = min(dirty, default=head.number)
        kept = []
        for version in head.versions:
            if version.number in holding or version.number > oldest:
                kept.append(version)
            else:
                for piece in range(version.pieces):
                    entries.remove(piece_name(version.number, piece))
        head.versions = kept

    # -- loading --

    def _load(self, kept: CachedSlot | None) -> int:
        """Load everything that is not cached. Returns the number of the cached version, 0 if nothing was cached."""
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
            if kept is not None and since:
                self._row_cache, self._opened = kept.row_cache, kept.opened
            return since
        for group in [g for g in self._tables if g not in head.groups]:
            del self._tables[group]
        for version in head.versions:
            if version.number > since:
                self._read(version)
                if self._memory is not None:
                    self._memory.relieve(self._tables)
        return since

    def _read(self, version: LogVersion) -> None:
        groups = self._head.groups
        for number in range(version.pieces):
            name, only = piece_name(version.number, number), self._only
            if only is not None and only.pieces is not None and name not in only.pieces:
                continue
            wanted = None if only is None else only.groups
            for group, whole, rows in unpack(stored_piece(self._entries, name), self._schema, wanted):
                known = groups.get(group)
                if known is None or version.number < known.whole:
                    continue
                if only is not None:
                    # A copy, since a slice of a few rows would keep their whole piece in memory.
                    rows = rows.take(pa.array(range(rows.num_rows), pa.int32()))
                if whole:
                    self._tables[group] = GroupTable.of(rows)
                else:
                    table = self._tables.get(group)
                    if table is None:
                        table = self._tables[group] = GroupTable(self._schema)
                    table.upsert(rows)
