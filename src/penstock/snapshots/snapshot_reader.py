"""Snapshot reader: reads listed files and checks them before use, lists defects, and accepts edits of a dump."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import DamagedSnapshotError, NotThereError, SnapshotError
from penstock.snapshots.digests import Digest, row_hashes
from penstock.snapshots.manifest import (
    BEFORE,
    MANIFEST,
    FileEntry,
    Manifest,
    TableEntry,
    from_bytes,
    snapshot_digest,
    to_bytes,
)
from penstock.snapshots.snapshot_writer import file_entry
from penstock.snapshots.stores import Store, open_store
from penstock.snapshots.table_formats import SnapshotFormat, decode, json_rows, line_of_row
from penstock.snapshots.text_rows import UnfitRowError

__all__ = ["Defect", "Verified", "accept", "read_file", "read_manifest", "read_table", "verify"]


def read_manifest(store: Store) -> Manifest:
    """Return the manifest of a snapshot.

    Raises NotThereError if there is no snapshot, DamagedSnapshotError if the manifest was changed, and SnapshotError if
    a newer version of penstock wrote it.
    """
    try:
        data = store.read(MANIFEST)
    except NotThereError:
        raise NotThereError(
            f"There is no snapshot in {store.uri!r}: {MANIFEST!r}, which is written last, is missing. Check the "
            "location; a snapshot that was not finished must be taken again."
        ) from None
    return from_bytes(data, store.uri)


def read_file(store: Store, file: FileEntry) -> pa.Buffer:
    """Return the content of a listed file. Raises DamagedSnapshotError if it is missing or was changed."""
    data, problem = _content(store, file)
    if problem or data is None:
        raise DamagedSnapshotError(
            f"{file.path!r} in {store.uri!r} {problem}. Restore it from a backup of the snapshot, or, if it is a "
            "dump that was edited on purpose, accept it."
        )
    return data


def _content(store: Store, file: FileEntry) -> tuple[pa.Buffer | None, str]:
    """Return the content of a file, and what is wrong with it."""
    try:
        data = store.open_input(file.path).read_buffer()
    except NotThereError:
        return None, "is missing"
    if data.size != file.bytes:
        return data, f"has {data.size} bytes instead of {file.bytes}"
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return data, "was changed: its SHA-256 differs"
    return data, ""


def read_table(store: Store, manifest: Manifest, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, in the order of its files. Each file is checked completely before its first row.

    Raises SnapshotError if the table does not exist, DamagedSnapshotError if a file is missing or was changed.
    """
    table = manifest.table(name)
    schema = table.arrow_schema
    for file in table.files:
        data = read_file(store, file)
        with _add_path_to_errors(file.path):
            yield from decode(data, schema, manifest.format)


@contextmanager
def _add_path_to_errors(path: str) -> Iterator[None]:
    """Add the path of the file to errors of rows."""
    try:
        yield
    except UnfitRowError as e:
        e.path = path
        raise


@dataclass(frozen=True)
class Defect:
    """A problem with a file, or with a table; then `path` is the name of the table."""

    path: str
    problem: str


@dataclass(frozen=True)
class Verified:
    """The result of `verify`; `manifest` is None if there is no usable one."""

    uri: str
    manifest: Manifest | None
    defects: tuple[Defect, ...]
    files: int
    rows: int

    @property
    def sound(self) -> bool:
        """Whether the snapshot is unchanged since it was written."""
        return not self.defects


def verify(uri: str) -> Verified:
    """Read a whole snapshot and list every defect.

    Defects are: a missing or damaged manifest; files that are missing, truncated, changed or not listed; and tables
    whose rows or number of rows differ from the manifest. Raises errors only if the location cannot be read.
    """
    store = open_store(uri)
    try:
        manifest = read_manifest(store)
    except SnapshotError as e:
        return Verified(uri, None, (Defect(MANIFEST, str(e)),), 0, 0)
    defects = [Defect(path, "is not listed in the manifest") for path in _unlisted(store, manifest)]
    for file in (*manifest.files, *(table.schema_file for table in manifest.tables)):
        _, problem = _content(store, file)
        defects += [Defect(file.path, problem)] if problem else []
    for table in manifest.tables:
        defects += _table_defects(store, manifest, table)
    if snapshot_digest(manifest.tables) != manifest.digest:
        defects.append(Defect(MANIFEST, "has a digest that does not match its tables"))
    rows = sum(table.rows for table in manifest.tables)
    return Verified(uri, manifest, tuple(defects), len(_listed(manifest)), rows)


def _listed(manifest: Manifest) -> list[FileEntry]:
    tables = manifest.tables
    return [
        *manifest.files,
        *(table.schema_file for table in tables),
        *(f for table in tables for f in table.files),
    ]


def _unlisted(store: Store, manifest: Manifest) -> list[str]:
    known = {MANIFEST, BEFORE, *(file.path for file in _listed(manifest))}
    return [path for path in store.list() if path not in known]


def _table_defects(store: Store, manifest: Manifest, table: TableEntry) -> list[Defect]:
    defects: list[Defect] = []
    total = Digest()
    for file in table.files:
        data, problem = _content(store, file)
        if data is not None and not problem:
            try:
                with _add_path_to_errors(file.path):
                    digest = Digest.of(decode(data, table.arrow_schema, manifest.format))
                total += digest
                if digest.rows != file.rows:
                    problem = f"has {digest.rows} rows instead of {file.rows}"
            except SnapshotError as e:
                problem = f"cannot be read: {e}"
        defects += [Defect(file.path, problem)] if problem else []
    if not defects and total.rows != table.rows:
        defects.append(Defect(table.name, f"has {total.rows} rows instead of {table.rows}"))
    elif not defects and total.hex() != table.digest:
        defects.append(Defect(table.name, "has rows that differ from those in the manifest"))
    return defects


def accept(uri: str) -> Manifest:
    """Accept the edited tables of a dump: check every row, then write a manifest for them.

    The previous manifest is kept as `manifest.json.before`. Rows in the files may be changed, added and removed, but
    files must not be added or removed.

    Raises UnfitRowError for the first row that does not fit its table's schema or repeats a key, SnapshotError for
    savepoints and for added or removed files, and DamagedSnapshotError for changed files that are not tables.
    """
    store = open_store(uri)
    manifest = read_manifest(store)
    if manifest.kind != "dump":
        raise SnapshotError(
            f"{uri!r} is a savepoint, which is never edited. Edit a dump of the job, and start from that."
        )
    for path in _unlisted(store, manifest):
        raise SnapshotError(
            f"{path!r} in {uri!r} is not listed in the manifest. Delete it; put rows that should count into a "
            "listed file of their table."
        )
    for file in (*manifest.files, *(table.schema_file for table in manifest.tables)):
        read_file(store, file)
    tables = tuple(_Edited(store, manifest.format, table).entry() for table in manifest.tables)
    accepted = msgspec.structs.replace(manifest, tables=tables, digest=snapshot_digest(tables))
    if accepted != manifest:
        store.replace(BEFORE, store.read(MANIFEST))
        store.replace(MANIFEST, to_bytes(accepted))
    return accepted


class _Edited:
    """A table whose files may have been edited."""

    def __init__(self, store: Store, format: SnapshotFormat, table: TableEntry) -> None:  # noqa: A002  # the one word for it
        self._store = store
        self._format = format
        self._table = table
        self._schema = table.arrow_schema

    def entry(self) -> TableEntry:
        """Return the entry of the table in its current form."""
        files, keys, total = [], [], Digest()
        for file in self._table.files:
            data = self._data(file)
            digest = Digest()
            for batch in self._batches(file, data):
                digest += Digest.of([batch])
                if self._table.key:
                    keys.append(row_hashes(batch.select(list(self._table.key))))
            files.append(file_entry(file.path, data, digest.rows))
            total += digest
        if keys:
            self._refuse_repeated([np.concatenate(lane) for lane in zip(*keys, strict=True)], files)
        return msgspec.structs.replace(self._table, files=tuple(files), rows=total.rows, digest=total.hex())

    def _data(self, file: FileEntry) -> pa.Buffer:
        try:
            return self._store.open_input(file.path).read_buffer()
        except NotThereError:
            raise SnapshotError(
                f"{file.path!r} in {self._store.uri!r} is missing. Put it back; to remove all its rows, leave a file "
                "without rows."
            ) from None

    def _batches(self, file: FileEntry, data: pa.Buffer) -> Iterator[pa.RecordBatch]:
        with _add_path_to_errors(file.path):
            yield from decode(data, self._schema, self._format)

    def _refuse_repeated(self, hashes: list[np.ndarray], files: list[FileEntry]) -> None:
        first, second = hashes
        # The sort is stable, so equal keys keep the order of their rows.
        order = np.lexsort((second, first))
        again = (first[order][1:] == first[order][:-1]) & (second[order][1:] == second[order][:-1])
        if not again.any():
            return
        row = int(order[1:][again].min())
        for file in files:
            if row < file.rows:
                raise self._repeated(file, row)
            row -= file.rows

    def _repeated(self, file: FileEntry, row: int) -> UnfitRowError:
        data = self._data(file)
        key = list(self._table.key)
        start = 0
        value = ""
        for batch in self._batches(file, data):
            if start <= row < start + len(batch):
                value = str(json_rows(batch.select(key).slice(row - start, 1))[0])
            start += len(batch)
        reason = "another row of the table has this key"
        return UnfitRowError(
            row, ", ".join(key), value, reason, line_of_row(data, self._format, row), file.path
        )
