"""Manifest: the content of a snapshot, in a human-readable file that detects any change to itself."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import DamagedSnapshotError, SnapshotError
from penstock.snapshots.arrow_schemas import Columns, schema_of
from penstock.snapshots.table_formats import SnapshotFormat

__all__ = [
    "BEFORE",
    "MANIFEST",
    "VERSION",
    "FileEntry",
    "Manifest",
    "SnapshotKind",
    "TableEntry",
    "TableKind",
    "from_bytes",
    "snapshot_digest",
    "to_bytes",
]

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
BEFORE: Final = "manifest.json.before"

SnapshotKind: TypeAlias = Literal["dump", "savepoint"]
TableKind: TypeAlias = Literal["state", "timers", "shared", "operator", "internal"]


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a snapshot."""

    path: str
    rows: int
    bytes: int
    sha256: str


class TableEntry(msgspec.Struct, frozen=True):
    """One table: its files in order, and the digest of its rows."""

    name: str
    step: str
    kind: TableKind
    schema: Columns
    """The result of `arrow_schemas.columns_of`."""
    key: tuple[str, ...]
    """The columns that identify a row; empty if rows may be equal."""
    schema_file: FileEntry
    files: tuple[FileEntry, ...]
    rows: int
    digest: str

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of all its files."""
        return schema_of(self.schema)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a whole snapshot."""

    version: int = VERSION
    kind: SnapshotKind
    id: str
    job: str
    batch: int
    created_at: str | None
    key_groups: int
    format: SnapshotFormat
    tables: tuple[TableEntry, ...]
    files: tuple[FileEntry, ...]
    """Files that are not tables."""
    positions: dict[str, Any]
    """The position at which each source resumes."""
    steps: dict[str, Any]
    """The notes of steps, by step id."""
    digest: str
    """The digest of all tables: equal for the same rows, whatever the format and the files."""

    def table(self, name: str) -> TableEntry:
        """Return the table with a name. Raises SnapshotError if it does not exist."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(repr(table.name) for table in self.tables) or "none"
        raise SnapshotError(f"The snapshot {self.id!r} has no table {name!r}. Its tables: {known}.")


def snapshot_digest(tables: tuple[TableEntry, ...]) -> str:
    """Return one digest of the names, schemas and rows of all tables."""
    parts = sorted((table.name, table.schema, table.digest) for table in tables)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


_CHECKSUM: Final = re.compile(rb',\n  "checksum": "([0-9a-f]{64})"\n}\n\Z')


def to_bytes(manifest: Manifest) -> bytes:
    """Encode a manifest as indented JSON. Its last field is the SHA-256 of all bytes before it."""
    text = msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2)
    body = text.removesuffix(b"\n}")
    return body + b',\n  "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


class _Version(msgspec.Struct):
    version: int


def from_bytes(data: bytes, where: str) -> Manifest:
    """Decode the manifest in a file.

    Raises DamagedSnapshotError when any bit of it has changed, SnapshotError when a newer version of penstock wrote it.
    """
    found = _CHECKSUM.search(data)
    if found is None or hashlib.sha256(data[: found.start()]).hexdigest().encode() != found[1]:
        raise DamagedSnapshotError(
            f"{MANIFEST!r} in {where!r} is damaged or was edited: its checksum does not match. Restore it from a "
            "backup of the snapshot. To edit a dump, change its tables and leave the manifest as it is."
        )
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise SnapshotError(
                f"The snapshot {where!r} has version {version} of the format, and this penstock knows up to {VERSION}. "
                "Use the penstock that wrote it, or a newer one."
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as e:
        raise DamagedSnapshotError(
            f"{MANIFEST!r} in {where!r} is not a manifest ({e}). Write it again."
        ) from e
