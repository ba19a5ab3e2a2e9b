"""Journal: records kept durably before the job relies on them, which makes any source replayable.

A journal is a folder of segments and a mark. Segments are files of blocks (see `journal_blocks.py`), named by the
position of their first byte. The mark is the position up to which everything is on disk. A position is a count of bytes
since the journal began. One process writes; readers in other processes trust only what is before the mark.

Data is on disk before the mark moves over it, so the mark itself need not be: a writer that opens the journal finds
the end again by reading the blocks after the mark. Where the checkpoint has its home on an object store, the store has
the data, too, before the mark moves.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.base.durable import make_folder, sync_folder
from penstock.errors import CheckpointError
from penstock.records.types import RecordType
from penstock.sources.base import CountedLog, SourceChunk, Split
from penstock.sources.journal_blocks import (
    PackedRecords,
    block_places,
    pack_block,
    read_blocks,
    read_note,
    whole_end,
)

__all__ = ["SEGMENT_BYTES", "JournalLog", "JournalWriter", "journal_begin", "journal_end"]

SEGMENT_BYTES: Final = 64 << 20
"""The size at which a segment is full."""
_SMALLEST_SPLIT_BYTES: Final = 1 << 20
_MARK: Final = struct.Struct("<q")
_ENDING: Final = ".blocks"
_KEPT_SEGMENTS: Final = 2


class JournalWriter:
    """The writer of a journal. Opening it cuts off what a crash left unfinished.

    Only one writer may be open at a time; a second one raises CheckpointError.

    Args:
        folder: the journal's folder, created when it does not exist.
        segment_bytes: a new segment begins when one has grown to this size.
        keep: called to copy the synced bytes to the store as well, before they count.

    """

    def __init__(
        self,
        folder: str | Path,
        segment_bytes: int = SEGMENT_BYTES,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = Path(folder)
        self._segment_bytes = segment_bytes
        self._keep = keep
        self.has_failed = False
        try:
            make_folder(self._folder)
            self._mark = os.open(self._folder / "mark", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise self._error(e) from e
        try:
            self._lock()
            self.position = self._recovered_end()
            self._open_segment()
            self._set_mark()
        except OSError as e:
            os.close(self._mark)
            raise self._error(e) from e
        except CheckpointError:
            os.close(self._mark)
            raise

    def append(self, records: Sequence[bytes] | PackedRecords, note: bytes = b"") -> int:
        """Append records, any bytes, and make them durable; return the position after them.

        When this returns, all of them are on disk, and only then do readers see them; a crash before that leaves
        all or none. `note` is the writer's own, for `notes`; a note without records is kept as well. After an error,
        which `has_failed` says, the journal must be opened again, because it is unknown what reached the disk. Raises
        CheckpointError when the disk fails, and what `keep` raises.
        """
        if not records and not note:
            return self.position
        packed = records if isinstance(records, PackedRecords) else PackedRecords.of(records)
        data = pack_block(packed, note)
        self.has_failed = True
        try:
            if self.position - self._segment_start >= self._segment_bytes:
                os.close(self._segment)
                self._open_segment()
            _write_all(self._segment, data)
            os.fdatasync(self._segment)
            self._keep()
            self.position += len(data)
            self._set_mark()
        except OSError as e:
            raise self._error(e) from e
        self.has_failed = False
        return self.position

    def notes(self) -> Iterator[bytes]:
        """Yield the notes of the newest blocks, newest first, as far back as the journal still has them.

        The notes of at least one segment's worth of the newest records are there, even when all was read and forgotten.
        """
        for start, path in reversed(_segments(self._folder)):
            with path.open("rb") as segment:
                places = list(block_places(segment.fileno(), 0, self.position - start))
                yield from (read_note(segment.fileno(), place) for place in reversed(places))

    def close(self) -> None:
        """Close the files. The journal can be opened again."""
        os.close(self._segment)
        os.close(self._mark)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise CheckpointError(
                f"The journal {self._folder} is being written by another run of the job. Stop that one first, or "
                "choose another --checkpoint."
            ) from e

    def _recovered_end(self) -> int:
        """Return the position after the last whole block, and cut off what follows it."""
        end = None
        mark = _read_mark(self._mark)
        segments = _segments(self._folder)
        for start, path in segments:
            if end is not None and start != end:
                raise self._damaged(f"the segment before {path.name} ends at {end}")
            end = start + path.stat().st_size
        if segments:
            start, path = segments[-1]
            assert end is not None
            with path.open("rb+") as segment:
                # Everything before the mark is on disk; only the bytes after it may be torn.
                whole = whole_end(segment.fileno(), max(0, mark - start), end - start)
                if mark <= end:
                    segment.truncate(whole)
                    end = start + whole
                os.fsync(segment.fileno())
        if (end or 0) < mark:
            raise self._damaged(f"it ends at {end or 0}, but had reached {mark}")
        return end or 0

    def _set_mark(self) -> None:
        # Eight aligned bytes are written whole or not at all.
        os.pwrite(self._mark, _MARK.pack(self.position), 0)

    def _error(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"The journal {self._folder} cannot be written ({error.strerror}).")

    def _damaged(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"The journal {self._folder} is damaged: {how}. Restore it, or delete the checkpoint."
        )

    def _open_segment(self) -> None:
        segments = [(start, path) for start, path in _segments(self._folder) if start <= self.position]
        last_is_open = bool(segments) and self.position - segments[-1][0] < self._segment_bytes
        self._segment_start = segments[-1][0] if last_is_open else self.position
        path = self._folder / f"{self._segment_start:020d}{_ENDING}"
        self._segment = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sync_folder(self._folder)


class JournalLog(CountedLog):
    """A journal as a log that can be read and replayed, by any process.

    Where tasks cannot reach the folder, splits have the blocks (`carries`).
    """

    def __init__(self, folder: str | Path, *, carries: bool = False) -> None:
        self._folder = Path(folder)
        self._carries = carries
        self._end: int | None = None

    def latest(self, start: int, *, limited: bool) -> int:
        """Return the newest durable position; with `limited` at most the end of the segment that is being read."""
        end = self._end if self._end is not None else self._durable()
        if limited:
            later = [segment for segment, _ in _segments(self._folder) if start < segment]
            end = min([end, *later])
        return max(start, end)

    def freeze(self) -> None:
        """Fix the end of the journal at its present durable end."""
        self._end = self._durable()

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        """Return the ranges of blocks between two positions, in order."""
        if start >= end:
            return []
        size = max(_SMALLEST_SPLIT_BYTES, -(-(end - start) // parallelism))
        found = []
        segments = _segments(self._folder)
        if not segments or segments[0][0] > start:
            raise CheckpointError(
                f"The journal {self._folder} no longer has what the checkpoint needs from position {start} on. "
                "Restore it, or delete the checkpoint."
            )
        ends = [*(segment for segment, _ in segments[1:]), end]
        for (segment, path), segment_end in zip(segments, ends, strict=True):
            low, high = max(start, segment), min(end, segment_end)
            for cut, next_cut in itertools.pairwise(_cuts(path, low - segment, high - segment, size)):
                content = _bytes_of(path, cut, next_cut) if self._carries else None
                found.append(Split(path.stem, str(path), cut, next_cut, content))
        return found

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # they are raw
        """Yield the records of a split."""
        content = None if split.content is None else io.BytesIO(split.content)
        return read_blocks(split.path, split.partition, split.start, split.end, content)

    def forget(self, end: int) -> None:
        """Delete the segments that are wholly before a position, except the newest, whose notes may be needed."""
        segments = _segments(self._folder)
        for (_, path), (later, _) in itertools.pairwise(segments[: 1 - _KEPT_SEGMENTS]):
            if later <= end:
                path.unlink(missing_ok=True)

    def lag(self, position: int) -> dict[str, Any]:
        """Return how many bytes wait after a position."""
        return {"bytes": max(0, self._durable() - position)}

    def _durable(self) -> int:
        try:
            mark = os.open(self._folder / "mark", os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            return _read_mark(mark)
        finally:
            os.close(mark)


def journal_end(folder: Path) -> int:
    """Return the position after the last byte that a journal has.

    It is never before what was read; the mark may be, when a power cut has set it back.
    """
    segments = _segments(folder)
    return segments[-1][0] + segments[-1][1].stat().st_size if segments else 0


def journal_begin(paths: Iterable[Path]) -> int | None:
    """Return the position of the first byte that some files of a journal have; None without a segment among them."""
    return min((int(path.stem) for path in paths if path.suffix == _ENDING), default=None)


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the segments with the positions of their first bytes, in order."""
    return sorted((int(path.stem), path) for path in folder.glob(f"*{_ENDING}"))


def _cuts(path: Path, low: int, high: int, size: int) -> list[int]:
    """Return where to cut the bytes [low, high) of a segment: at both ends, and between blocks about `size` apart."""
    cuts = [low]
    if high - low > size:
        with path.open("rb") as segment:
            for place in block_places(segment.fileno(), low, high):
                if place.end - cuts[-1] >= size and place.end < high:
                    cuts.append(place.end)
    return [*cuts, high] if high > low else cuts


def _bytes_of(path: Path, low: int, high: int) -> bytes:
    with path.open("rb") as segment:
        return os.pread(segment.fileno(), high - low, low)


def _read_mark(descriptor: int) -> int:
    data = os.pread(descriptor, _MARK.size, 0)
    return int(_MARK.unpack(data)[0]) if len(data) == _MARK.size else 0


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
