"""Dumps: those taken by the server. They stay in its folder, by the ids of their operations, until deleted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import msgspec

from penstock.base.durable import write_atomically
from penstock.errors import PenstockError, UnknownIdError
from penstock.savepoints.savepoints import dispose
from penstock.server.resource import Resource
from penstock.server.runs.archives import zip_files
from penstock.server.runs.directory import ServerDirectory
from penstock.server.store.row_types import OperationRow
from penstock.snapshots.manifest import MANIFEST, Manifest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["Dump", "archive_of_dump", "delete_dump", "list_dumps", "note_dump", "read_dump"]


class Dump(Resource):
    """A dump of the state of a job, which may since have been deleted. Its id is that of its operation."""

    id: str
    job: str
    """The id of the job."""
    job_name: str
    batch: int
    """The micro-batch after which the state was dumped."""
    format: str
    created_ms: int
    created_by: str
    rows: int
    """The number of rows of all tables."""
    bytes: int


class _Note(msgspec.Struct, frozen=True):
    """The facts that are not in the files of a dump: its job, who requested it, and when."""

    job: str
    created_ms: int
    created_by: str


def note_dump(home: ServerDirectory, operation: OperationRow) -> None:
    """Record that the dump of an operation is done. The record outlives the operation and the job."""
    note = _Note(operation.job_id, operation.created_ms, operation.created_by)
    write_atomically(home.dumps / f"{operation.id}.json", msgspec.json.encode(note))


def list_dumps(home: ServerDirectory) -> list[Dump]:
    """Return the dumps, in the order of their ids."""
    found = []
    for dump_id in _ids(home):
        # A damaged dump cannot be downloaded, so it is not listed.
        with contextlib.suppress(PenstockError):
            found.append(read_dump(home, dump_id))
    return found


def read_dump(home: ServerDirectory, dump_id: str) -> Dump:
    """Read a dump. Raises UnknownIdError."""
    manifest = _manifest(home, dump_id)
    note = msgspec.json.decode((home.dumps / f"{dump_id}.json").read_bytes(), type=_Note)
    return Dump(
        id=dump_id,
        job=note.job,
        job_name=manifest.job,
        batch=manifest.batch,
        format=manifest.format,
        created_ms=note.created_ms,
        created_by=note.created_by,
        rows=sum(table.rows for table in manifest.tables if table.kind != "internal"),
        bytes=sum(file.bytes for table in manifest.tables for file in table.files),
    )


def archive_of_dump(home: ServerDirectory, dump_id: str) -> Iterator[bytes]:
    """Return the files of a dump as a zip archive, in chunks. Raises UnknownIdError."""
    manifest = _manifest(home, dump_id)
    tables = [file.path for table in manifest.tables for file in (table.schema_file, *table.files)]
    return zip_files(home.dumps / dump_id, [MANIFEST, *tables])


def delete_dump(home: ServerDirectory, dump_id: str) -> None:
    """Delete a dump, its manifest first. Raises UnknownIdError."""
    _manifest(home, dump_id)
    dispose(str(home.dumps / dump_id))
    shutil.rmtree(home.dumps / dump_id, ignore_errors=True)
    (home.dumps / f"{dump_id}.json").unlink(missing_ok=True)


def _ids(home: ServerDirectory) -> list[str]:
    if not home.dumps.exists():
        return []
    return sorted(path.stem for path in home.dumps.glob("*.json"))


def _manifest(home: ServerDirectory, dump_id: str) -> Manifest:
    # Ids are looked up, so that no path is built from anything else.
    if dump_id not in _ids(home) or not (home.dumps / dump_id / MANIFEST).exists():
        raise UnknownIdError(f"There is no dump {dump_id!r}.")
    return read_manifest(open_store(str(home.dumps / dump_id)))
