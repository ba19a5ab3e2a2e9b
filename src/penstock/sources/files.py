"""File source: a directory of JSON Lines, CSV or Parquet files as a log that can be replayed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bindings import LINE_FORMATS, FilesBinding
from penstock.durable import make_folder, sync_folder
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.records import RecordType, empty_like
from penstock.sources.base import SourceChunk, Split
from penstock.sources.lines import bad_chunk, read_lines
from penstock.sources.tables import UnreadableFileError, parquet_rows, read_csv, read_parquet

__all__ = ["FileLog", "LoggedFile", "share"]

_SHOWN_BYTES: Final = 4096
_SMALL_BYTES: Final = 1 << 20
_SMALL_ROWS: Final = 65_536
_UNKNOWN_ROWS: Final = 1 << 40
_IGNORED_ENDINGS: Final = (".tmp", ".crc")


@dataclass(frozen=True)
class LoggedFile:
    """A file as it was when it was found."""

    directory: str
    name: str
    size: int
    mtime_ns: int

    @property
    def path(self) -> str:
        """Where the file is."""
        return os.path.join(self.directory, self.name)  # noqa: PTH118  # called for each file of a batch

    @property
    def partition(self) -> str:
        """The name as text that Arrow can hold, whatever its bytes are."""
        return os.fsencode(self.name).decode("utf-8", "backslashreplace")


class FileLog:
    """The files of one directory in the order in which they were found; position n is behind the first n.

    Files are found while the job runs, new ones together in the order of their names, and none is taken
    twice. They are expected to be complete when they get their names: write under a name that begins with `.`
    or `_`, or ends in `.tmp`, and rename. Lines appended to a file after it was found are not read; when the
    driver sees them before the file is read, a bad record says so.

    The order is kept in an append-only file of its own at `log_path`, which belongs in the checkpoint. Only
    one copy of the log may find files (`latest`, `freeze`); others, in other processes, may ask for splits
    and for the lag, and read.
    """

    def __init__(self, binding: FilesBinding, log_path: str | Path) -> None:
        self._binding = binding
        self._log_path = str(log_path)
        self._open()

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._found: _FoundFiles | None = None
        self._directory = _Directory(self._binding.directory)
        self._end: int | None = None

    def __getstate__(self) -> tuple[FilesBinding, str]:
        return self._binding, self._log_path

    def __setstate__(self, state: tuple[FilesBinding, str]) -> None:
        self._binding, self._log_path = state
        self._open()

    def check(self) -> None:
        """Raise BindingError when the directory does not exist or cannot be listed."""
        binding, directory = self._binding, self._binding.directory
        try:
            os.scandir(directory).close()
        except OSError as e:
            what = {FileNotFoundError: "does not exist", NotADirectoryError: "is a file, not a directory"}
            raise BindingError(
                f"Stream {binding.stream!r}: the directory {directory} of {binding.uri!r} "
                f"{what.get(type(e), f'cannot be listed ({e.strerror})')}. "
                f"Create it, or bind the stream to another with -D {binding.stream}={binding.format}:DIR."
            ) from e

    def latest(self, start: int, *, limited: bool) -> int:
        """Find new files, and give the position to read up to; `limited` by `max_files_per_batch`."""
        with self._lock:
            found = self._files()
            if self._end is None:
                self._discover(found, force=False)
            end = len(found.files) if self._end is None else self._end
        limit = self._binding.max_files_per_batch
        if limited and limit is not None:
            end = min(end, start + limit)
        return max(start, end)

    def freeze(self) -> None:
        """Find what is there now, and nothing after it."""
        with self._lock:
            found = self._files()
            self._discover(found, force=True)
            self._end = len(found.files)

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """The files between two positions in the order of their names, large ones cut."""
        with self._lock:
            found = self._files()
            if end > len(found.files):
                found.refresh()
            if end > len(found.files):
                raise CheckpointError(
                    f"Stream {self._binding.stream!r}: the checkpoint has read {end} files, but its list of "
                    f"files {self._log_path} has {len(found.files)}. Restore it, or delete the checkpoint."
                )
            files = sorted(found.files[start:end], key=lambda file: file.name)
        return _cut(files, self._binding.format, parallelism)

    def read(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        """The records of a split. A file that cannot be read gives a bad record that names it."""
        try:
            if self._binding.format in LINE_FORMATS and split.start == split.end:
                yield from _appended(split)
            elif self._binding.format in LINE_FORMATS:
                yield from read_lines(split.path, split.partition, split.start, split.end)
            elif self._binding.format == "csv":
                yield from read_csv(split.path, split.partition, record_type)
            else:
                yield from read_parquet(split.path, split.partition, split.start, split.end, record_type)
        except FileNotFoundError:
            reason = f"The file {split.path} is gone since it was found, so its records are missing."
            yield self._bad(split, reason, split.start, record_type)
        except UnreadableFileError as e:
            yield self._bad(split, f"{split.path}: {e}", e.offset, record_type)
        except OSError as e:
            reason = f"{split.path} cannot be read: {e.strerror or e}"
            yield self._bad(split, reason, split.start, record_type)

    def forget(self, end: int) -> None:
        """Nothing to do: the files are the user's, and their names are kept so that none is taken twice."""

    def lag(self, position: int) -> dict[str, Any]:
        """How many files, and bytes, wait behind a position."""
        with self._lock:
            found = self._files()
            # Files may be found by a copy of this log in another process.
            found.refresh()
            waiting = found.files[position : self._end]
        return {"files": len(waiting), "bytes": sum(file.size for file in waiting)}

    def _bad(self, split: Split, reason: str, offset: int, record_type: RecordType) -> SourceChunk:
        chunk = bad_chunk(split.partition, reason, offset, _beginning(split.path))
        if self._binding.format in LINE_FORMATS:
            return chunk
        return dataclasses.replace(chunk, raw=None, batch=empty_like(record_type.schema))

    def _files(self) -> _FoundFiles:
        if self._found is None:
            self._found = _FoundFiles(self._log_path)
        return self._found

    def _discover(self, found: _FoundFiles, *, force: bool) -> None:
        try:
            new = self._directory.new_files(found.known, force=force)
        except OSError as e:
            raise ExternalSystemError(
                f"Stream {self._binding.stream!r}: the directory {self._binding.directory} cannot be listed "
                f"any more ({e.strerror}). Bring it back and start the job again; it goes on where it was."
            ) from e
        if new:
            found.append(new)


class _FoundFiles:
    """The durable list of the files that were found. One process appends; others may read it meanwhile."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read_bytes = 0
        self.files: list[LoggedFile] = []
        self.known: set[tuple[str, str]] = set()
        self.refresh()

    def append(self, files: Sequence[LoggedFile]) -> None:
        """Add files; they are on disk when this returns."""
        lines = b"".join(_log_line(file) for file in files)
        try:
            if not self._path.exists():
                make_folder(self._path.parent)
                self._path.touch()
                sync_folder(self._path.parent)
            with self._path.open("r+b") as log:
                # What stands behind the whole lines is from a crash, and no position covers it.
                log.truncate(self._read_bytes)
                log.seek(self._read_bytes)
                log.write(lines)
                log.flush()
                os.fsync(log.fileno())
        except OSError as e:
            raise self._error(e) from e
        self._remember(files, len(lines))

    def refresh(self) -> None:
        """Read the lines that were added since."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._read_bytes)
                added = log.read()
        except FileNotFoundError:
            return
        except OSError as e:
            raise self._error(e) from e
        whole = added.rfind(b"\n") + 1
        try:
            files = [LoggedFile(**json.loads(line)) for line in added[:whole].splitlines()]
        except (ValueError, TypeError) as e:
            raise CheckpointError(
                f"The list of files {self._path} is damaged ({e}). Restore it, or delete the checkpoint."
            ) from e
        self._remember(files, whole)

    def _remember(self, files: Sequence[LoggedFile], size: int) -> None:
        self._read_bytes += size
        self.files.extend(files)
        self.known.update((file.directory, file.name) for file in files)

    def _error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint cannot keep its list of files {self._path}: {error.strerror}. "
            "Choose a folder that can be written with --checkpoint."
        )


def _log_line(file: LoggedFile) -> bytes:
    # json escapes what is no valid text in file names, and never writes a newline.
    fields = {"directory": file.directory, "name": file.name, "size": file.size, "mtime_ns": file.mtime_ns}
    return json.dumps(fields).encode() + b"\n"


class _Directory:
    """Lists a directory, but only when it may have changed."""

    # Two changes within the file system's clock tick leave the same mtime, so a young mtime proves nothing.
    _SETTLED_NS: Final = 2_000_000_000
    # The clock of a file server may be far from ours; then this is how late a file is found.
    _FORCED_NS: Final = 30_000_000_000

    def __init__(self, path: str) -> None:
        self._path = path
        self._settled_mtime_ns: int | None = None
        self._listed_ns = 0

    def new_files(self, known: set[tuple[str, str]], *, force: bool) -> list[LoggedFile]:
        """The files that are not known, in the order of their names."""
        now, mtime = time.time_ns(), os.stat(self._path).st_mtime_ns  # noqa: PTH116  # asked for every batch
        if not force and mtime == self._settled_mtime_ns and 0 <= now - self._listed_ns < self._FORCED_NS:
            return []
        new = [
            file
            for name in sorted(_visible_names(self._path))
            if (self._path, name) not in known and (file := _look_at(self._path, name)) is not None
        ]
        self._listed_ns = now
        self._settled_mtime_ns = mtime if mtime < now - self._SETTLED_NS else None
        return new


def _visible_names(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith((".", "_")) and not entry.name.endswith(_IGNORED_ENDINGS):
                yield entry.name


def _look_at(directory: str, name: str) -> LoggedFile | None:
    try:
        found = os.stat(os.path.join(directory, name))  # noqa: PTH116, PTH118  # called for each new file
    except OSError:
        # It went between the listing and now, or is a dangling link.
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return LoggedFile(directory, name, found.st_size, found.st_mtime_ns)


def _cut(files: Sequence[LoggedFile], file_format: str, parallelism: int) -> list[Split]:
    if file_format == "parquet":
        sizes, smallest = [_rows(file) for file in files], _SMALL_ROWS
    else:
        sizes, smallest = [file.size for file in files], _SMALL_BYTES
    whole = [
        file_format == "csv" or file.size < _SMALL_BYTES or size == _UNKNOWN_ROWS
        for file, size in zip(files, sizes, strict=True)
    ]
    known = [size if size < _UNKNOWN_ROWS else 0 for size in sizes]
    cuts = _cut_points(known, whole, parallelism, smallest)
    splits = []
    for file, size, points in zip(files, sizes, cuts, strict=True):
        for low, high in itertools.pairwise([0, *points, size]):
            splits.append(Split(file.partition, file.path, low, high))
        if file_format in LINE_FORMATS and size and _has_grown(file):
            # An empty split at the file's end, which reports what was appended.
            splits.append(Split(file.partition, file.path, size, size))
    return splits


def _cut_points(
    sizes: Sequence[int], whole: Sequence[bool], parallelism: int, smallest: int
) -> list[list[int]]:
    """Where to cut each file so that equal shares of all files together end at cuts.

    Files marked whole are not cut, and no piece is smaller than half of `smallest`.
    """
    share = max(smallest, math.ceil(sum(sizes) / max(1, parallelism)))
    points: list[list[int]] = []
    begin = 0
    for size, is_whole in zip(sizes, whole, strict=True):
        first = share - begin % share
        candidates = [] if is_whole else range(first, size, share)
        points.append([p for p in candidates if p >= smallest // 2 and size - p >= smallest // 2])
        begin += size
    return points


def share(splits: Sequence[Split], parallelism: int) -> list[list[Split]]:
    """The splits of a batch as at most `parallelism` runs of about the same size, in order."""
    weights = [_weight(split) for split in splits]
    total = sum(weights)
    groups: dict[int, list[Split]] = {}
    begin = 0
    for split, weight in zip(splits, weights, strict=True):
        group = (2 * begin + weight) * parallelism // (2 * total)
        groups.setdefault(group, []).append(split)
        begin += weight
    return list(groups.values())


def _weight(split: Split) -> int:
    size = split.end - split.start
    return size if 0 < size < _UNKNOWN_ROWS else 1


def _rows(file: LoggedFile) -> int:
    """The rows of a Parquet file. One that cannot be read is left to a task, which reports it."""
    try:
        return parquet_rows(file.path)
    except UnreadableFileError:
        return _UNKNOWN_ROWS


def _has_grown(file: LoggedFile) -> bool:
    found = _look_at(file.directory, file.name)
    return found is not None and found.size > file.size


def _appended(split: Split) -> Iterator[SourceChunk]:
    """Report what was appended to a file behind the split's (empty) place."""
    with Path(split.path).open("rb") as file:
        file.seek(split.end)
        raw = file.read(_SHOWN_BYTES)
    if raw:
        reason = (
            f"{split.path} has grown since it was found with {split.end} bytes; what was added is not read. "
            "Write each file under a name that begins with '_' or '.', and rename it when it is complete."
        )
        yield bad_chunk(split.partition, reason, split.end, raw)


def _beginning(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_SHOWN_BYTES)
    except OSError:
        return b""
