"""Delta commits: the files that each version of a Delta table has added, from its log."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bindings.types import DeltaBinding
from penstock.errors import BindingError
from penstock.lakes.committed_files import CommittedFile, LakeRows, TableGoneError, changed_error
from penstock.lakes.delta_files import delta_files, storage_options
from penstock.lakes.delta_table import as_external, open_table
from penstock.lakes.staged_files import format_partition_value

__all__ = ["DeltaCommits"]

_BLOCK_ROWS: Final = 256 * 1024
_READ: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})


class _Add(msgspec.Struct, rename="camel"):
    path: str
    size: int
    data_change: bool
    partition_values: dict[str, str | None] = {}
    stats: str | None = None
    deletion_vector: dict[str, Any] | None = None


class _Remove(msgspec.Struct, rename="camel"):
    data_change: bool = True


class _Protocol(msgspec.Struct, rename="camel"):
    reader_features: list[str] | None = None


class _Action(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None
    protocol: _Protocol | None = None


class _Statistics(msgspec.Struct, rename="camel"):
    num_records: int | None = None


class DeltaCommits:
    """The commits of a Delta table in a folder. Their versions are those of its log."""

    def __init__(self, binding: DeltaBinding) -> None:
        self._binding: Final = binding
        self._newest = -1

    def open(self) -> str:
        """Open the table, and return its id."""
        table = open_table(self._binding)
        if table is None:
            raise BindingError(
                f"Stream {self._binding.stream!r}: there is no Delta table in {self._binding.directory}. Bind the "
                "stream to the folder of one."
            )
        self._check_features(table.protocol().reader_features or [])
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":
            self._check_features(["columnMapping"])
        self._newest = table.version()
        return str(table.metadata().id)

    def newest(self) -> int:
        """Return the newest version. Only looks for the next file of the log."""
        there = delta_files(self._binding)
        while there.holds(_log_of(self._newest + 1)):
            self._newest += 1
        return self._newest

    def files_at(self, version: int) -> Sequence[CommittedFile]:
        """Return the files of a version, by their age."""
        from deltalake import DeltaTable

        with as_external(self._binding):
            table = DeltaTable(
                self._binding.directory, version=version, storage_options=storage_options(self._binding)
            )
            actions = pa.table(table.get_add_actions()).to_pylist()
        actions.sort(key=lambda action: (action["modification_time"], action["path"]))
        return [
            self._file(
                action["path"],
                action["size_bytes"],
                action["num_records"],
                {
                    name: format_partition_value(value)
                    for name, value in (action.get("partition") or {}).items()
                },
            )
            for action in actions
        ]

    def added(self, after: int, upto: int) -> Iterator[tuple[int, Sequence[CommittedFile]]]:
        """Yield the versions after one, with the files that each has added."""
        for version in range(after + 1, upto + 1):
            yield version, self._added_by(version)

    def _added_by(self, version: int) -> list[CommittedFile]:
        content = delta_files(self._binding).find(_log_of(version))
        if content is None:
            raise TableGoneError(
                f"Stream {self._binding.stream!r}: the log of {self._binding.directory} no longer has version "
                f"{version}, which was not read yet. Start with a new checkpoint, which reads the whole table, and let "
                "the table keep its log for longer (delta.logRetentionDuration)."
            )
        actions = [_ACTIONS.decode(line) for line in content.splitlines() if line]
        for action in actions:
            if action.protocol is not None:
                self._check_features(action.protocol.reader_features or [])
        place = f"the Delta table {self._binding.directory}"
        if any(action.remove is not None and action.remove.data_change for action in actions):
            if self._binding.reading.changed == "skip":
                return []
            raise changed_error(self._binding.stream, place, version, "deletes or rewrites rows")
        adds = [action.add for action in actions if action.add is not None and action.add.data_change]
        if any(add.deletion_vector is not None for add in adds):
            self._check_features(["deletionVectors"])
        return [self._file(add.path, add.size, _rows(add), add.partition_values) for add in adds]

    def read(self, detail: Mapping[str, Any], fields: Sequence[str]) -> Iterator[LakeRows]:
        """Yield the rows of a file."""
        with delta_files(self._binding).open(detail["path"]) as place, pq.ParquetFile(place) as file:
            wanted = [name for name in fields if name in file.schema_arrow.names]
            for batch in file.iter_batches(_BLOCK_ROWS, columns=wanted, use_threads=False):
                yield batch, detail["values"]

    def _file(
        self, path: str, size: int, rows: int | None, values: Mapping[str, str | None]
    ) -> CommittedFile:
        # The log has the path as a URI.
        there = delta_files(self._binding)
        if "%" in path and not there.holds(path):
            path = urllib.parse.unquote(path)
        count = rows
        if count is None:
            with there.open(path) as place:
                count = pq.read_metadata(place).num_rows
        return CommittedFile(size, count, {"path": path, "values": dict(values)})

    def _check_features(self, features: Sequence[str]) -> None:
        unknown = sorted(set(features) - _READ)
        if unknown:
            raise BindingError(
                f"Stream {self._binding.stream!r}: the Delta table {self._binding.directory} needs a reader that knows "
                f"{', '.join(unknown)}, which penstock does not. Read it with Spark (spark:delta), or from a table "
                "without."
            )


def _log_of(version: int) -> str:
    return f"_delta_log/{version:020}.json"


_ACTIONS: Final = msgspec.json.Decoder(_Action)


def _rows(add: _Add) -> int | None:
    return None if add.stats is None else msgspec.json.decode(add.stats, type=_Statistics).num_records
