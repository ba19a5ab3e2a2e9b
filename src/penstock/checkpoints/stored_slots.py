"""Stored slots: what the slots of a step have stored after a micro-batch, read from Spark's files without Spark.

Spark stores a partition of the state as snapshots, which are RocksDB databases, and changelogs of the versions after
them. An entry has the same bytes in both:

    key    family (2 bytes), size of the prefix (4), 0, row of the slot; 0, row of the name
    value  checksum (4 bytes), size of what follows (4), 0, row of the content

Numbers are little-endian, and each row is an UnsafeRow of Spark.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.checkpoints.spark_checkpoint import state_versions
from penstock.checkpoints.spark_state_files import ancestors, blocks, damage
from penstock.checkpoints.state_files import StateFiles
from penstock.errors import CheckpointError, PenstockError
from penstock.state.stored_blocks import Content

__all__ = ["stored_slots"]

_PUT: Final = 1
_DELETE: Final = 2
_END: Final = 0
_PREFIX: Final = struct.Struct("<HI")
_VALUE: Final = struct.Struct("<II")
# A row of one column: a bit set of nulls, then the size of the column and its place in the row.
_ROW: Final = struct.Struct("<QII")


def stored_slots(
    folder: Path, batch_id: int, node: str, files: StateFiles, numbers: Iterable[int]
) -> Iterator[tuple[int, Mapping[str, Content]]]:
    """Yield some slots of a step, by their partition numbers, with their entries after a micro-batch.

    A slot that has stored nothing has no entries. `folder` is Spark's part of the checkpoint, `files` are those of the
    state, and `node` is the name under which the step's state is stored. Only files of the named slots are read. Raises
    CheckpointError when one is damaged or missing, as when a running job has removed it.
    """
    operator = files.operator_of(node)
    versions = state_versions(folder / "commits" / str(batch_id), is_newest=False).get(str(operator), [])
    for number in numbers:
        partition = _Partition(files, f"{operator}/{number}")
        has_run = number < len(versions)
        yield number, partition.entries(batch_id + 1, versions[number][0], node) if has_run else {}


@dataclass(frozen=True)
class _Partition:
    """A partition of an operator's state: its files, by their names in `folder`."""

    files: StateFiles
    folder: str

    def _path(self, name: str) -> Path:
        return self.files.path(f"{self.folder}/{name}")

    def entries(self, version: int, unique_id: str, node: str) -> dict[str, Content]:
        """Return the entries of a step in the partition: those of a snapshot, with all changes after it."""
        descent = {version: unique_id}
        changelogs: list[Path] = []
        for number in range(version, 0, -1):
            name = f"{number}_{descent[number]}"
            snapshot = self._path(f"{name}.zip")
            if snapshot.exists():
                family, entries = self._read_snapshot(snapshot, node)
                for path in reversed(changelogs):
                    _apply(path, family, entries)
                return entries
            changelog = self._path(f"{name}.changelog")
            changelogs.append(changelog)
            if number - 1 not in descent:
                descent |= ancestors(changelog) or {}
            if number - 1 not in descent:
                break
        raise damage(
            self._path(f"{version}_{unique_id}").parent,
            f"has no snapshot (.zip) on which version {version} can be built",
        )

    def _read_snapshot(self, snapshot: Path, node: str) -> tuple[int, dict[str, Content]]:
        """Return the number of the step's column family, and its entries in a snapshot."""
        try:
            with (
                tempfile.TemporaryDirectory(prefix="penstock-state-") as folder,
                zipfile.ZipFile(snapshot) as archive,
            ):
                listed: dict[str, Any] = msgspec.json.decode(archive.read("metadata").split(b"\n", 1)[1])
                archive.extractall(folder)
                for kind, local, stored in (
                    ("SSTs", "localFileName", "dfsSstFileName"),
                    ("logs", "localFileName", "dfsLogFileName"),
                ):
                    for file in listed.get("sstFiles" if kind == "SSTs" else "logFiles") or []:
                        (Path(folder) / file[local]).symlink_to(
                            self._path(f"{kind}/{file[stored]}").absolute()
                        )
                family = listed["columnFamilyMapping"].get(node)
                if family is None:
                    return 0, {}
                return family, _database_entries(folder, family)
        except (OSError, zipfile.BadZipFile, KeyError, IndexError, msgspec.MsgspecError) as e:
            raise damage(snapshot, f"cannot be read ({e})") from e


def _database_entries(folder: str, family: int) -> dict[str, Content]:
    """Return the entries of a column family in a RocksDB database, whose folder is our own. Raises OSError."""
    # Most processes that import this module read no state.
    from rocksdict import AccessType, Options, Rdict

    first = struct.pack("<H", family)
    found: dict[str, Content] = {}
    try:
        database = Rdict(folder, Options(raw_mode=True), access_type=AccessType.read_only())
        for key, value in database.items(from_key=first):
            # In its raw mode, the database has bytes only.
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            if not key.startswith(first):
                break
            found[_name(key)] = _content(value)
        database.close()
    except PenstockError:
        raise
    except Exception as e:
        # The database has no error of its own.
        raise OSError(str(e)) from e
    return found


def _apply(changelog: Path, family: int, entries: dict[str, Content]) -> None:
    """Apply the changes of a version to the entries of a column family."""
    content = memoryview(b"".join(blocks(changelog)))
    try:
        at = 0
        for _ in ("version of the format", "ancestors"):
            at += 2 + int.from_bytes(content[at : at + 2])
        while (kind := content[at]) != _END:
            key, at = _sized(content, at + 1)
            value, at = _sized(content, at)
            if int.from_bytes(key[:2], "little") != family:
                continue
            if kind == _PUT:
                entries[_name(key)] = _content(value)
            elif kind == _DELETE:
                entries.pop(_name(key), None)
            else:
                raise damage(changelog, f"has a change of the unknown kind {kind}")
    except (IndexError, struct.error, UnicodeDecodeError) as e:
        raise damage(changelog, f"cannot be read ({e})") from e


def _sized(content: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the bytes at a place, which their size precedes, and the place after them. A deletion has the size -1."""
    size = max(int.from_bytes(content[at : at + 4], signed=True), 0)
    end = at + 4 + size
    if end > len(content):
        raise IndexError("it is truncated")
    return content[at + 4 : end], end


def _name(key: Content) -> str:
    """Return the name of an entry from its key."""
    _, prefix = _PREFIX.unpack_from(key)
    row = memoryview(key)[_PREFIX.size + prefix + 1 :]
    # The column is a row of its own, of one column.
    return str(_column(_column(row)), "utf-8")


def _content(value: Content) -> Content:
    """Return the content of an entry from its value."""
    _, size = _VALUE.unpack_from(value)
    if size != len(value) - _VALUE.size:
        raise CheckpointError(
            "The state is stored in a form that only Spark reads: its values have no checksum. Take a dump, and query "
            "that."
        )
    return _column(memoryview(value)[_VALUE.size + 1 :])


def _column(row: memoryview) -> memoryview:
    """Return the only column of a row."""
    _, size, place = _ROW.unpack_from(row)
    return row[place : place + size]
