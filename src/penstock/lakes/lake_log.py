"""Lake log: a table that grows as a log that can be replayed, by the files that its commits have added."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.bindings.types import BYTES_PER_BATCH, DeltaBinding, FilesBinding, IcebergBinding
from penstock.errors import ExternalSystemError
from penstock.lakes.committed_files import CommittedFile, TableCommits, TableGoneError
from penstock.lakes.delta_commits import DeltaCommits
from penstock.lakes.iceberg_commits import IcebergCommits
from penstock.records.types import RecordType
from penstock.sources.base import SourceChunk, Split
from penstock.sources.file_source import FileLog, Keeping
from penstock.sources.file_tables import table_chunk
from penstock.sources.found_files import FoundFiles, Listing, LoggedFile, no_fence

__all__ = ["LakeLog"]

# A table is asked for new commits at most this often; a catalog and a store less often than a folder.
_LOOK_S: Final = {"delta": 0.05, "s3": 1.0, "iceberg": 1.0}
# A placeholder for a version that has added nothing, so that the next look begins after it.
_NOTHING: Final = "end"
# The prefix of the index of a file that the table had when a job began.
_WHOLE: Final = "all"
_JSON_COLUMNS: Final = ("target", "payload")


class LakeLog(FileLog):
    """The files of a table in the order of its commits; position n is after the first n.

    A job without a checkpoint begins with all files of the newest version, or after them. From then on each commit
    adds its files to the list in the checkpoint, with its version. A commit that changes no data, as compaction, adds
    none. The list has everything that a worker needs to read a file. With `commands` the rows become JSON objects.
    """

    def __init__(
        self,
        binding: DeltaBinding | IcebergBinding,
        log_path: str | Path,
        keeping: Keeping | None = None,
        fence: Callable[[], None] = no_fence,
        *,
        commands: bool = False,
    ) -> None:
        reading = binding.reading
        files = FilesBinding(
            binding.stream,
            binding.uri,
            "parquet",
            binding.place,
            reading.max_files_per_batch,
            max_bytes_per_batch=reading.max_bytes_per_batch or BYTES_PER_BATCH,
        )
        self._lake: Final[DeltaBinding | IcebergBinding] = binding
        self._commands: Final = commands
        self._commits: TableCommits = (
            DeltaCommits(binding) if isinstance(binding, DeltaBinding) else IcebergCommits(binding)
        )
        self._table_id: str | None = None
        self._next_look_s = 0.0
        super().__init__(files, log_path, keeping, fence)

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), self._lake, self._commands, self._commits)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *files, lake, commands, commits = state
        self.__dict__.update(
            _lake=lake, _commands=commands, _commits=commits, _table_id=None, _next_look_s=0.0
        )
        super().__setstate__(tuple(files))

    def check(self) -> None:
        """Open the table. Raises BindingError when it is not there, or cannot be read as a stream."""
        self._table_id = self._commits.open()

    def _discover(self, found: FoundFiles, *, force: bool) -> None:
        now_s = time.monotonic()
        if not force and now_s < self._next_look_s:
            return
        kind = "iceberg"
        if isinstance(self._lake, DeltaBinding):
            kind = self._lake.scheme or "delta"
        self._next_look_s = now_s + _LOOK_S[kind]
        if self._table_id is None:
            self.check()
        assert self._table_id is not None
        found.take_over()
        last = found.files[-1] if found.files else None
        if last is not None and last.directory != self._table_id:
            raise TableGoneError(
                f"Stream {self._lake.stream!r}: {self._lake.place} is another table than the one that the checkpoint "
                "has read. Start with a new checkpoint, or bring the table back."
            )
        newest = self._commits.newest()
        if last is not None and (newest, -1) == _place(last):
            return
        new = list(self._new_files(newest, last))
        if new:
            found.append(new)

    def _new_files(self, newest: int, last: LoggedFile | None) -> Iterator[LoggedFile]:
        """Yield the files missing in the list: of the version of its last file, if incomplete, and of later ones."""
        if last is None:
            files = self._commits.files_at(newest) if self._lake.reading.start == "earliest" else []
            yield from self._listed(newest, files, -1, _WHOLE)
            return
        version, index = _place(last)
        # A crash may have cut the list within a version, which then has no end.
        if index >= 0 and f"-{_WHOLE}" in last.name:
            yield from self._listed(version, self._commits.files_at(version), index, _WHOLE)
            index = -1
        for number, files in self._commits.added(version - (index >= 0), newest):
            yield from self._listed(number, files, index if number == version else -1)

    def _listed(
        self, version: int, files: Sequence[CommittedFile], after: int, mark: str = ""
    ) -> Iterator[LoggedFile]:
        assert self._table_id is not None
        for index, file in enumerate(files):
            if index > after:
                is_last = index == len(files) - 1
                detail = json.dumps({"rows": file.rows, "last": is_last, **file.detail}, sort_keys=True)
                yield LoggedFile(self._table_id, f"{version:020}-{mark}{index:06} {detail}", file.size, 0)
        if not files:
            yield LoggedFile(self._table_id, f"{version:020}-{_NOTHING}", 0, 0)

    def _cut(self, files: Sequence[LoggedFile], parallelism: int) -> list[Split]:  # noqa: ARG002  # files are not cut
        splits = []
        for file in files:
            place, _, detail = file.name.partition(" ")
            if detail:
                splits.append(Split(place, detail, 0, int(json.loads(detail)["rows"])))
        return splits

    def _compact(self, found: FoundFiles, upto: int) -> None:
        # The last file says which version was read.
        there = Listing(self._binding.directory, (), time.time())
        found.compact(min(upto, found.end - 1), there, 0)

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the rows of a file; the offset of a record is its row, from 0."""
        detail = json.loads(split.path)
        offset = 0
        try:
            for batch, texts in self._commits.read(detail, record_type.field_names):
                offsets = np.arange(offset, offset + len(batch))
                if self._commands:
                    yield SourceChunk(split.partition, pa.array(offsets), raw=_as_json(batch, texts))
                else:
                    yield table_chunk(batch, split.partition, offsets, record_type, texts)
                offset += len(batch)
        except (OSError, pa.ArrowException) as e:
            raise ExternalSystemError(
                f"Stream {self._lake.stream!r}: the file {detail['path']} of {self._lake.place}, which version "
                f"{int(split.partition.partition('-')[0])} has added, cannot be read ({e}). If it was removed, let the "
                "table keep its files for longer than a job may be behind or stopped, and start with a new checkpoint."
            ) from e


def _place(file: LoggedFile) -> tuple[int, int]:
    """Return the version and the index of a file in a list; the index is -1 for the last file of a version."""
    place, _, detail = file.name.partition(" ")
    version, _, index = place.partition("-")
    if not detail or json.loads(detail)["last"]:
        return int(version), -1
    return int(version), int(index.removeprefix(_WHOLE))


def _as_json(batch: pa.RecordBatch, texts: Any) -> pa.Array:
    """Return rows as JSON objects without nulls; target and payload may be text of JSON."""

    def shown(name: str, value: Any) -> Any:
        return msgspec.Raw(value.encode()) if name in _JSON_COLUMNS and isinstance(value, str) else value

    rows = [
        {name: shown(name, value) for name, value in {**texts, **row}.items() if value is not None}
        for row in batch.to_pylist()
    ]
    return pa.array([msgspec.json.encode(row, enc_hook=str) for row in rows], pa.binary())
