"""File source: a directory of JSON Lines, CSV or Parquet files as a log that can be replayed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import math
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bindings.types import LINE_FORMATS, FilesBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.records.types import RecordType, empty_like
from penstock.sources.base import MISSING, CountedLog, SourceChunk, Split
from penstock.sources.compressed_files import ExpandedContent, compression_of
from penstock.sources.file_errors import UnreadableFileError
from penstock.sources.file_tables import CsvFile, parquet_rows, read_csv, read_parquet
from penstock.sources.found_files import FoundFiles, Listing, LoggedFile, no_fence
from penstock.sources.lines import bad_chunk, read_expanded_lines, read_lines

__all__ = ["IGNORED_ENDINGS", "UNKNOWN_ROWS", "FileLog", "Keeping", "LoggedFile", "share"]

_SHOWN_BYTES: Final = 4096
_SMALL_BYTES: Final = 1 << 20
_SMALL_ROWS: Final = 65_536
UNKNOWN_ROWS: Final = 1 << 40
# The minimum size that a file counts as, so that a limit of bytes also limits the number of files.
_MIN_BYTES: Final = 4096
IGNORED_ENDINGS: Final = (".tmp", ".crc")
_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
# A file that comes back, with its disk or share, within this time is not read again.
_FORGOTTEN_AFTER_S: Final = 24 * 3600


@dataclass(frozen=True)
class Keeping:
    """The retention of files that were read.

    The list has those of the newest `retained` micro-batches, to which a job may go back, and at least those after
    position `oldest`. With `owned` the folder is the checkpoint's own: a file is removed from it when its micro-batch
    is committed.
    """

    retained: int = 100
    oldest: int = 0
    owned: bool = False


class FileLog(CountedLog):
    """The files of one directory in the order in which they were found; position n is after the first n.

    Files are found while the job runs, new ones together in the order of their names, and none is taken
    twice. They are expected to be complete when they get their names: write under a name that begins with `.`
    or `_`, or ends in `.tmp`, and rename. Lines appended to a file after it was found are not read; when the
    driver sees them before the file is read, a bad record says so.

    Files whose names end in `.gz`, `.zst` or `.bz2` are compressed, other than Parquet files. They are not cut, and the
    offsets of their records count what they expand to.

    Content that cannot be parsed becomes a bad record. A file that the system cannot read (it is gone, its disk or
    share fails, memory is out) raises ExternalSystemError, so that its micro-batch is run again.

    The order is kept in its own file at `log_path`, which belongs in the checkpoint; `keeping` bounds it, and `fence`
    raises an error when a later run owns the checkpoint. Only one copy of the log may find files (`latest`, `freeze`);
    others, in other processes, may ask for splits and for the lag, and read.
    """

    def __init__(
        self,
        binding: FilesBinding,
        log_path: str | Path,
        keeping: Keeping | None = None,
        fence: Callable[[], None] = no_fence,
    ) -> None:
        self._binding = binding
        self._log_path = str(log_path)
        self._keeping = keeping or Keeping()
        self._fence = fence
        self._open()

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._found: FoundFiles | None = None
        self._removed = 0
        self._ends: deque[int] = deque(maxlen=self._keeping.retained)
        self._directory = _Directory(self._binding.directory)
        self._end: int | None = None

    def __getstate__(self) -> tuple[FilesBinding, str, Keeping, Callable[[], None]]:
        return self._binding, self._log_path, self._keeping, self._fence

    def __setstate__(self, state: tuple[FilesBinding, str, Keeping, Callable[[], None]]) -> None:
        self._binding, self._log_path, self._keeping, self._fence = state
        self._open()

    def check(self) -> None:
        """Raise BindingError when the directory does not exist or cannot be listed.

        Raises ExternalSystemError when the stream was read from it before: then the directory is right, but
        unreachable.
        """
        binding, directory = self._binding, self._binding.directory
        try:
            os.scandir(directory).close()
        except OSError as e:
            if Path(self._log_path).is_file() and not isinstance(e, NotADirectoryError):
                raise self._cannot_list(e) from e
            what = {FileNotFoundError: "does not exist", NotADirectoryError: "is a file, not a directory"}
            raise BindingError(
                f"Stream {binding.stream!r}: the directory {directory} of {binding.uri!r} "
                f"{what.get(type(e), f'cannot be listed ({e.strerror})')}. "
                f"Create it, or bind the stream to another with -D {binding.stream}={binding.format}:DIR."
            ) from e

    def latest(self, start: int, *, limited: bool) -> int:
        """Find new files, and return the position to read up to; `limited` by what one micro-batch may read."""
        with self._lock:
            found = self._files()
            if self._end is None:
                self._discover(found, force=False)
            end = found.end if self._end is None else self._end
            if limited:
                end = self._limit(found, start, end)
        return max(start, end)

    @property
    def is_paced(self) -> bool:
        """Whether the binding limits the files of a micro-batch."""
        return self._binding.max_files_per_batch is not None

    def _limit(self, found: FoundFiles, start: int, end: int) -> int:
        """Return how far one micro-batch may read: at least one file, within the limits of the binding."""
        if self._binding.max_files_per_batch is not None:
            end = min(end, start + self._binding.max_files_per_batch)
        left = self._binding.max_bytes_per_batch
        for position, file in enumerate(found.between(start, end), start):
            left -= max(file.size, _MIN_BYTES)
            if left < 0:
                return max(position, start + 1)
        return end

    def freeze(self) -> None:
        """Find the files that exist now, and none after them."""
        with self._lock:
            found = self._files()
            self._discover(found, force=True)
            self._end = found.end

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Return the files between two positions in the order of their names, large ones cut."""
        with self._lock:
            found = self._files()
            if end > found.end:
                found.refresh()
            if end > found.end:
                raise CheckpointError(
                    f"Stream {self._binding.stream!r}: the checkpoint has read {end} files, but its list of "
                    f"files {self._log_path} has {found.end}. Restore it, or delete the checkpoint."
                )
            files = sorted(found.between(start, end), key=lambda file: file.name)
        files = [file for file in files if not self._was_taken(file)]
        return self._cut(files, parallelism)

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        yield from self._read_file(split, split.path, record_type)

    def _read_file(self, split: Split, path: str, record_type: RecordType) -> Iterator[SourceChunk]:
        """Yield the records of a split, whose content is in the file at a path.

        A file whose bytes cannot be parsed yields a bad record that names it.

        Raises ExternalSystemError when the system cannot read the bytes.
        """
        file_format = self._binding.format
        with self._as_external(split.path):
            try:
                if file_format in LINE_FORMATS and split.start == split.end:
                    yield from _report_appended(split, path)
                elif file_format in LINE_FORMATS and compression_of(path):
                    most_bytes = self._binding.max_expanded_bytes
                    yield from read_expanded_lines(path, split.partition, split.end, most_bytes)
                elif file_format in LINE_FORMATS:
                    yield from read_lines(path, split.partition, split.start, split.end)
                elif file_format == "csv":
                    yield from read_csv(self._csv_file(split, path), split.partition, record_type)
                else:
                    yield from read_parquet(path, split.partition, split.start, split.end, record_type)
                if file_format != "parquet":
                    yield from self._report_lost(split, path, record_type)
            except UnreadableFileError as e:
                yield self._bad(split, path, f"{split.path}: {e}", e.offset, record_type)
            except FileNotFoundError:
                if not self._may_miss():
                    raise
                reason = f"The file {split.path} disappeared after it was found, so its records are missing."
                yield self._bad(split, path, reason, split.start, record_type)

    def _csv_file(self, split: Split, path: str) -> CsvFile:
        dialect, most_bytes = self._binding.dialect, self._binding.max_expanded_bytes
        if not compression_of(path):
            return CsvFile(path, dialect)
        return CsvFile(path, dialect, lambda: ExpandedContent(path, split.end, most_bytes))

    def forget(self, end: int) -> None:
        """Remove the files before a position from a folder of the checkpoint's own, and keep the list short.

        Other folders are the user's.
        """
        with self._lock:
            found = self._files()
            if self._keeping.owned and self._ends:
                # The commit of the micro-batch before the last is on disk, that of the last one perhaps not yet.
                self._remove(found, self._ends[-1])
            self._ends.append(end)
            is_full = len(self._ends) == self._ends.maxlen
            upto = max(self._keeping.oldest, self._ends[0] if is_full else 0)
            if found.is_worthwhile(upto):
                self._compact(found, upto)

    def _remove(self, found: FoundFiles, end: int) -> None:
        for file in found.between(max(self._removed, found.first), end):
            if file.directory == self._binding.directory:
                # A file that cannot be removed stays known, so it is not read again.
                with contextlib.suppress(OSError):
                    os.unlink(file.path)  # noqa: PTH108  # asked for every file
        self._removed = max(self._removed, end)

    def _compact(self, found: FoundFiles, upto: int) -> None:
        directory = self._binding.directory
        try:
            names = os.listdir(directory)  # noqa: PTH208  # only names are needed
        except OSError:
            # Finding new files reports this error, and a file that is missing for a moment must not be forgotten.
            return
        after_s = 0 if self._keeping.owned else _FORGOTTEN_AFTER_S
        found.compact(upto, Listing(directory, names, time.time()), after_s)

    def _was_taken(self, file: LoggedFile) -> bool:
        """Return whether a command no longer waits: the job of the savepoint has read and removed it."""
        is_foreign = self._keeping.owned and file.directory != self._binding.directory
        return is_foreign and not Path(file.path).exists()

    def lag(self, position: int) -> dict[str, Any]:
        """Return how many files and bytes wait after a position."""
        with self._lock:
            found = self._files()
            # Files may be found by a copy of this log in another process.
            found.refresh()
            end = found.end if self._end is None else self._end
            waiting = found.between(max(position, found.first), end)
        return {"files": len(waiting), "bytes": sum(file.size for file in waiting)}

    def _bad(self, split: Split, path: str, reason: str, offset: int, record_type: RecordType) -> SourceChunk:
        chunk = bad_chunk(split.partition, reason, offset, _beginning(path))
        if self._binding.format in LINE_FORMATS:
            return chunk
        return dataclasses.replace(chunk, raw=None, batch=empty_like(record_type.schema))

    def _report_lost(self, split: Split, path: str, record_type: RecordType) -> Iterator[SourceChunk]:
        """Report bytes of a split that a file has lost since it was found."""
        size = os.stat(path).st_size  # noqa: PTH116  # asked for every split
        if size < split.end:
            reason = (
                f"{split.path} had at least {split.end} bytes when it was found, and has {size} now; what came after "
                "them is missing. Files must not change once they have their names."
            )
            yield self._bad(split, path, reason, max(size, split.start), record_type)

    def _may_miss(self) -> bool:
        """Return whether a missing file may be skipped: only when its directory exists."""
        return self._binding.missing == "skip" and os.path.isdir(self._binding.directory)  # noqa: PTH112  # a path as text, as the binding has it

    @contextlib.contextmanager
    def _as_external(self, path: str) -> Iterator[None]:
        """Turn a failure to read a file into an error that says what to do."""
        try:
            yield
        except (OSError, MemoryError) as e:
            raise self._unreadable(path, e) from e

    def _unreadable(self, path: str, error: OSError | MemoryError) -> ExternalSystemError:
        binding = self._binding
        what = f"Stream {binding.stream!r}: the file {path}"
        again = "when the job is started again, it continues where it was, and reads the file then"
        if isinstance(error, FileNotFoundError):
            skip = f"-D {binding.stream}={binding.format}:{binding.directory}?missing=skip"
            return ExternalSystemError(
                f"{what} was found, but disappeared before it was read. Put it back, or mount its disk or share; "
                f"{again}. To continue without missing files, with a dead letter for each, start it with {skip}."
            )
        if isinstance(error, MemoryError):
            return ExternalSystemError(
                f"{what} cannot be read, since memory is out ({error}). Give the job more memory, or smaller files; "
                f"{again}. If the file is damaged, replace it with a whole or an empty one."
            )
        return ExternalSystemError(
            f"{what} cannot be read ({error.strerror or error}). Check its disk, share or permissions; {again}."
        )

    def _cut(self, files: Sequence[LoggedFile], parallelism: int) -> list[Split]:
        file_format = self._binding.format
        of_rows = file_format == "parquet"
        sizes = [self._rows(file) if of_rows else file.size for file in files]
        splits = []
        for file, size, points in zip(
            files, sizes, _cuts(files, sizes, file_format, parallelism), strict=True
        ):
            for low, high in itertools.pairwise([0, *points, size]):
                splits.append(Split(file.partition, file.path, low, high))
            if file_format in LINE_FORMATS and size and self._has_grown(file):
                # An empty split at the file's end, which reports what was appended.
                splits.append(Split(file.partition, file.path, size, size))
        return splits

    def _rows(self, file: LoggedFile) -> int:
        """Return the number of rows of a Parquet file. A file with damaged bytes is left to a task, which reports it.

        One that the system cannot read is not: a replay would cut the files of the micro-batch in another way.
        """
        with self._as_external(file.path):
            try:
                return parquet_rows(file.path)
            except UnreadableFileError:
                return UNKNOWN_ROWS
            except FileNotFoundError:
                if not self._may_miss():
                    raise
                return UNKNOWN_ROWS

    def _has_grown(self, file: LoggedFile) -> bool:
        with self._as_external(file.path):
            found = _look_at(file.directory, file.name)
        return found is not None and found.size > file.size

    def _files(self) -> FoundFiles:
        if self._found is None:
            self._found = FoundFiles(self._log_path, self._fence)
        return self._found

    def _discover(self, found: FoundFiles, *, force: bool) -> None:
        found.take_over()
        try:
            new = self._directory.new_files(found, force=force)
        except OSError as e:
            raise self._cannot_list(e) from e
        if new:
            found.append(new)

    def _cannot_list(self, error: OSError) -> ExternalSystemError:
        return ExternalSystemError(
            f"Stream {self._binding.stream!r}: the directory {self._binding.directory} can no longer be listed "
            f"({error.strerror}). Bring it back and start the job again; it continues where it was."
        )


class _Directory:
    """A directory that is listed only when it may have changed."""

    # Two changes within the file system's clock tick leave the same mtime, so a recent mtime proves nothing.
    _SETTLED_NS: Final = 2_000_000_000
    # The clock of a file server may be far from ours; then this is how late a file is found.
    _FORCED_NS: Final = 30_000_000_000

    def __init__(self, path: str) -> None:
        self._path = path
        self._settled_mtime_ns: int | None = None
        self._listed_ns = 0

    def new_files(self, found: FoundFiles, *, force: bool) -> list[LoggedFile]:
        """Return the files that are not known, in the order of their names."""
        now, mtime = time.time_ns(), os.stat(self._path).st_mtime_ns  # noqa: PTH116  # asked for every batch
        if not force and mtime == self._settled_mtime_ns and 0 <= now - self._listed_ns < self._FORCED_NS:
            return []
        names = sorted(found.unknown(self._path, _visible_names(self._path)))
        if names and mtime >= now - self._SETTLED_NS:
            # A listing may have a file that appeared while it was made, and not one that appeared before it.
            earlier = (
                name for name in found.unknown(self._path, _visible_names(self._path)) if name < names[-1]
            )
            names = sorted({*names, *earlier})
        new = [file for name in names if (file := _look_at(self._path, name)) is not None]
        self._listed_ns = now
        self._settled_mtime_ns = mtime if mtime < now - self._SETTLED_NS else None
        return new


def _visible_names(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith((".", "_")) and not entry.name.endswith(IGNORED_ENDINGS):
                yield entry.name


def _look_at(directory: str, name: str) -> LoggedFile | None:
    try:
        found = os.stat(os.path.join(directory, name))  # noqa: PTH116, PTH118  # called for each new file
    except OSError as e:
        if e.errno not in _NO_FILE:
            raise
        # It disappeared after the listing, or is a dangling link.
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return LoggedFile(directory, name, found.st_size, found.st_mtime_ns)


def _cuts(
    files: Sequence[LoggedFile], sizes: Sequence[int], file_format: str, parallelism: int
) -> list[list[int]]:
    """Return where each file is cut, in bytes or rows, the unit of its size."""
    smallest = _SMALL_ROWS if file_format == "parquet" else _SMALL_BYTES
    whole = [
        file_format == "csv"
        or file.size < _SMALL_BYTES
        or size == UNKNOWN_ROWS
        # What a compressed file expands to can only be read from its beginning.
        or (file_format in LINE_FORMATS and compression_of(file.name) is not None)
        for file, size in zip(files, sizes, strict=True)
    ]
    known = [size if size < UNKNOWN_ROWS else 0 for size in sizes]
    return _cut_points(known, whole, parallelism, smallest)


def _cut_points(
    sizes: Sequence[int], whole: Sequence[bool], parallelism: int, smallest: int
) -> list[list[int]]:
    """Return where to cut each file so that equal shares of all files together end at cuts.

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
    """Group the splits of a batch into at most `parallelism` runs of about the same size, in order."""
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
    size = 0 if split.path == MISSING else split.end - split.start
    return size if 0 < size < UNKNOWN_ROWS else 1


def _report_appended(split: Split, path: str) -> Iterator[SourceChunk]:
    """Report what was appended to a file after the split's (empty) range."""
    with Path(path).open("rb") as file:
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
