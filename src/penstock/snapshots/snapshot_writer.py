"""Snapshot writer: any process writes parts of tables; one commit then creates the snapshot."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import xxhash

from penstock.errors import AlreadyThereError, SnapshotError
from penstock.snapshots.arrow_schemas import check_schema, columns_of, key_columns
from penstock.snapshots.digests import Digest
from penstock.snapshots.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    SnapshotKind,
    TableEntry,
    TableKind,
    snapshot_digest,
    to_bytes,
)
from penstock.snapshots.row_sizes import Bound, runs_within
from penstock.snapshots.stores import Data, Store
from penstock.snapshots.table_formats import SnapshotFormat, encode

__all__ = [
    "PART_BYTES",
    "Contents",
    "PartEntry",
    "Parts",
    "TableInfo",
    "commit",
    "file_entry",
    "table_path",
    "write_file",
    "write_part",
]

PART_BYTES: Final = 64 << 20
"""The approximate bytes of rows per file."""
_MAX_ROWS: Final = 1 << 40
_LONGEST: Final = 200
_HEAD: Final = 120
_CUT_ESCAPE: Final = re.compile("%.?$")


@dataclass(frozen=True)
class TableInfo:
    """A table: its name, such as "thermostat/setting", its step, its kind and its schema."""

    name: str
    step: str
    kind: TableKind
    schema: pa.Schema
    key: tuple[str, ...] | None = None
    """The columns that identify a row: by default `key` and those that begin with `key.`. () if rows may be equal."""

    def __post_init__(self) -> None:
        schema = check_schema(self.schema, self.name)
        key = key_columns(schema) if self.key is None else self.key
        unknown = [name for name in key if name not in schema.names]
        if unknown:
            raise SnapshotError(
                f"The table {self.name!r} has no column {unknown[0]!r} for its key. Name its own columns."
            )
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "key", key)


class PartEntry(msgspec.Struct, frozen=True):
    """One written part of a table, for the commit. `piece` counts the pieces with the same number."""

    table: str
    number: int
    file: FileEntry
    digest: Digest
    piece: int = 0


@dataclass(frozen=True)
class Contents:
    """The content of a manifest apart from its parts. Tables without parts are empty."""

    kind: SnapshotKind
    id: str
    job: str
    batch: int
    key_groups: int
    format: SnapshotFormat
    tables: Sequence[TableInfo]
    created_at: str | None = None
    files: Sequence[FileEntry] = ()
    positions: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)


def table_path(name: str) -> str:
    """Return the folder of a table. It has no dots, so that it is never mistaken for a file, nor hidden."""
    parts = name.split("/")
    if not all(parts):
        raise SnapshotError(
            f"{name!r} is not a table name. Give names with '/' between them, none of them empty."
        )
    return "/".join(map(_segment, parts))


def _segment(name: str) -> str:
    segment = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(segment) > _LONGEST:
        # The name of a folder may have up to 255 bytes.
        segment = f"{_CUT_ESCAPE.sub('', segment[:_HEAD])}~{xxhash.xxh3_128_hexdigest(name.encode())}"
    return segment


class Parts:
    """The parts of a table that one process writes under one number, in pieces of limited size.

    So writing or reading a part takes only that much memory, and an object store accepts it in one request, which is
    atomic.
    """

    def __init__(self, store: Store, table: TableInfo, number: int, format: SnapshotFormat) -> None:  # noqa: A002  # the one word for it
        self._store: Final = store
        self._table: Final = table
        self._number: Final = number
        self._format: Final = format
        self._pieces = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PartEntry]:
        """Write rows; parts are not shared with other calls. Raises the errors of `write_part`."""
        for run in runs_within(batches, Bound(_MAX_ROWS, PART_BYTES)):
            yield write_part(self._store, self._table, self._number, run, self._format, self._pieces)
            self._pieces += 1


def write_part(
    store: Store,
    table: TableInfo,
    number: int,
    batches: Iterable[pa.RecordBatch],
    format: SnapshotFormat,  # noqa: A002  # the one word for it
    piece: int = 0,
) -> PartEntry:
    """Write one part of a table, with its own number and piece. Different processes may write parts.

    A repeated task writes the same bytes, and keeps the existing file. Raises AlreadyThereError if the file exists with
    other bytes, SnapshotError if rows do not fit the table.
    """
    kept = list(batches)
    name = f"part-{number:05}-{piece:04}" if piece else f"part-{number:05}"
    path = f"{table_path(table.name)}/{name}.{format}"
    data = encode(kept, table.schema, format)
    digest = Digest.of(kept)
    return PartEntry(table.name, number, write_file(store, path, data, rows=digest.rows), digest, piece)


def write_file(store: Store, path: str, data: Data, *, rows: int = 0) -> FileEntry:
    """Write a file of a snapshot, unless it exists with the same bytes. Raises AlreadyThereError if they differ."""
    try:
        store.create(path, data)
    except AlreadyThereError:
        if store.read(path) != bytes(data):
            raise
    return file_entry(path, data, rows)


def file_entry(path: str, data: Data, rows: int) -> FileEntry:
    """Return the entry of a file with this content."""
    view = memoryview(data)
    return FileEntry(path, rows, view.nbytes, hashlib.sha256(view).hexdigest())


def commit(store: Store, contents: Contents, parts: Iterable[PartEntry]) -> Manifest:
    """Write the schemas, and then the manifest, which creates the snapshot.

    Raises AlreadyThereError if another snapshot exists there, SnapshotError if parts do not fit the tables.
    """
    if contents.kind == "savepoint" and contents.format != "arrow":
        raise SnapshotError(
            f"A savepoint has the format arrow, not {contents.format!r}. Write a dump, or use arrow."
        )
    by_table = _by_table(contents, list(parts))
    tables = tuple(
        _table_entry(store, table, by_table[table.name])
        for table in sorted(contents.tables, key=lambda table: table.name)
    )
    manifest = Manifest(
        kind=contents.kind,
        id=contents.id,
        job=contents.job,
        batch=contents.batch,
        created_at=contents.created_at,
        key_groups=contents.key_groups,
        format=contents.format,
        tables=tables,
        files=tuple(sorted(contents.files, key=lambda file: file.path)),
        positions=contents.positions,
        steps=contents.steps,
        digest=snapshot_digest(tables),
    )
    write_file(store, MANIFEST, to_bytes(manifest))
    return manifest


def _by_table(contents: Contents, parts: list[PartEntry]) -> dict[str, list[PartEntry]]:
    found: dict[str, list[PartEntry]] = {table.name: [] for table in contents.tables}
    if len(found) < len(contents.tables):
        raise SnapshotError(f"The snapshot {contents.id!r} has two tables of the same name. Rename one.")
    for part in sorted(parts, key=lambda part: (part.table, part.number, part.piece)):
        if part.table not in found:
            raise SnapshotError(
                f"The part {part.file.path!r} does not belong to a table of the snapshot {contents.id!r}."
            )
        # The parts of a table are sorted by number, so a repeated part follows the first.
        last = found[part.table][-1:]
        if [(one.number, one.piece) for one in last] == [(part.number, part.piece)]:
            raise SnapshotError(f"The part {part.file.path!r} occurs twice. Give each part its own number.")
        if not part.file.path.endswith(f".{contents.format}"):
            raise SnapshotError(
                f"The part {part.file.path!r} is not in the format {contents.format!r} of the snapshot."
            )
        found[part.table].append(part)
    return found


def _table_entry(store: Store, table: TableInfo, parts: list[PartEntry]) -> TableEntry:
    assert table.key is not None
    columns = columns_of(table.schema)
    about = {"version": 1, "table": table.name, "step": table.step, "kind": table.kind, "key": table.key}
    text = msgspec.json.format(msgspec.json.encode({**about, "columns": columns}), indent=2) + b"\n"
    digest = sum((part.digest for part in parts), Digest())
    return TableEntry(
        name=table.name,
        step=table.step,
        kind=table.kind,
        schema=columns,
        key=table.key,
        schema_file=write_file(store, f"{table_path(table.name)}/schema.json", text),
        files=tuple(part.file for part in parts),
        rows=digest.rows,
        digest=digest.hex(),
    )
