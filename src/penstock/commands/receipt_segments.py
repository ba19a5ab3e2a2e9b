"""Receipt segments: the receipts that a checkpoint keeps, as lines of JSON in files of bounded number and size.

The folder `receipts` has segments, `0000000001.jsonl` and so on, oldest first. The run that has the checkpoint appends
the receipts of each micro-batch to the newest; when that is full it begins another, and deletes the oldest beyond the
bound. Next to each full segment is its index, `0000000001.ids`: the sorted hashes of its ids, which find an id without
reading receipts. An index can be rebuilt from its segment; without one the segment is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.base.durable import make_folder, sync_folder, whole_lines_bytes, write_atomically
from penstock.control.encoded_receipts import id_hash
from penstock.control.receipts import FINAL, Receipt
from penstock.errors import CheckpointError
from penstock.streams.own_streams import RECEIPTS

__all__ = [
    "DEFAULT_RECEIPTS_BYTES",
    "NewReceipts",
    "SegmentWriter",
    "kept_receipts",
    "newest_mark",
    "receipts_backwards",
    "receipts_in",
    "segment_names",
]

DEFAULT_RECEIPTS_BYTES: Final = 256 << 20
_SEGMENT_BYTES: Final = 4 << 20
_LINES: Final = ".jsonl"
_INDEX: Final = ".ids"
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Receipt)


class _Known(msgspec.Struct):
    """The part of a receipt that the index and the writer need."""

    id: str
    status: str
    batch: int


_known: Final = msgspec.json.Decoder(_Known)


def kept_receipts(checkpoint: Path) -> Path:
    """Return the folder in a checkpoint that keeps the receipts."""
    return checkpoint / RECEIPTS


class SegmentWriter:
    """Appends receipts to a checkpoint, for the run that owns it. They are on disk when the call returns.

    Args:
        checkpoint: the folder of the checkpoint.
        segment_bytes: a segment of this size is full.
        max_bytes: the oldest segments are deleted when all together have more.

    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        segment_bytes: int = _SEGMENT_BYTES,
        max_bytes: int = DEFAULT_RECEIPTS_BYTES,
    ) -> None:
        self._folder: Final = kept_receipts(checkpoint)
        self._segment_bytes: Final = max(1, min(segment_bytes, max_bytes // 4))
        self._max_bytes: Final = max_bytes
        self._number = 0
        self._size = 0
        self._newest = -1
        # The hashes of the ids in the newest segment; None if they must be read from it.
        self._hashes: list[npt.NDArray[np.uint64]] | None = None

    def open(self) -> None:
        """Continue where the last run ended: cut off a torn line, and write missing indexes."""
        make_folder(self._folder)
        numbers = _numbers(self._folder)
        for number in numbers[:-1]:
            if not _path(self._folder, number, _INDEX).exists():
                self._write_index(number)
        self._number = numbers[-1] if numbers else 0
        self._size, self._newest, self._hashes = 0, -1, None
        if not numbers:
            return
        with _path(self._folder, self._number, _LINES).open("r+b") as file:
            self._size = whole_lines_bytes(file.fileno())
            file.truncate(self._size)
            os.fsync(file.fileno())
        for number in reversed(numbers):
            if (last := _last_line(_path(self._folder, number, _LINES))) is not None:
                self._newest = _decode_known(self._folder, number, last)[0].batch
                break
        self._forget()

    def append(self, batch_id: int, lines: bytes, hashes: npt.NDArray[np.uint64]) -> None:
        """Append the receipts of a micro-batch, as whole lines; skip those already written.

        `hashes` are those of their ids. Raises OSError when the disk fails.
        """
        if not self._number:
            self.open()
        if batch_id <= self._newest:
            lines = self._missing(batch_id, lines)
            if not lines:
                return
        elif not self._number or self._size + len(lines) > self._segment_bytes:
            self._begin_segment()
        with _path(self._folder, self._number, _LINES).open("r+b") as file:
            file.seek(self._size)
            try:
                file.write(lines)
                file.flush()
                os.fdatasync(file.fileno())
            except OSError:
                # A part that reached the disk must not count as the whole.
                with contextlib.suppress(OSError):
                    file.truncate(self._size)
                raise
        self._size += len(lines)
        if self._hashes is not None:
            self._hashes.append(hashes)
        self._newest = max(self._newest, batch_id)

    def _missing(self, batch_id: int, lines: bytes) -> bytes:
        """Return the lines of a micro-batch that are not written yet; an earlier write may have been cut off."""
        if batch_id < self._newest:
            found = any(
                known.batch == batch_id
                for number in reversed(_numbers(self._folder))
                for known in _decode_known(self._folder, number, _whole_lines(self._folder, number))
            )
            return b"" if found else lines
        kept = _whole_lines(self._folder, self._number)
        known = _decode_known(self._folder, self._number, kept)
        there = [
            (line, one) for line, one in zip(kept.splitlines(), known, strict=True) if one.batch == batch_id
        ]
        written = b"".join(line + b"\n" for line, _ in there)
        if lines.startswith(written):
            return lines[len(written) :]
        # A handler may answer differently in a replay: the first receipt stays, and no command gets two.
        over = {one.id for _, one in there if one.status in FINAL}
        each = {(one.id, one.status) for _, one in there}
        new = [(line, _known.decode(line)) for line in lines.splitlines(keepends=True)]
        return b"".join(line for line, one in new if one.id not in over and (one.id, one.status) not in each)

    def _begin_segment(self) -> None:
        if self._number:
            self._write_index(self._number, self._hashes)
        self._number += 1
        try:
            _path(self._folder, self._number, _LINES).touch()
            sync_folder(self._folder)
        except OSError as e:
            self._number -= 1
            raise OSError(e.errno or errno.EIO, e.strerror, str(self._folder)) from e
        self._size, self._hashes = 0, []
        self._forget()

    def _write_index(self, number: int, known: Sequence[npt.NDArray[np.uint64]] | None = None) -> None:
        if known is None:
            lines = _decode_known(self._folder, number, _whole_lines(self._folder, number))
            known = [np.array([id_hash(one.id) for one in lines], "<u8")]
        hashes = np.unique(np.concatenate(known)) if known else np.empty(0, "<u8")
        write_atomically(_path(self._folder, number, _INDEX), hashes.astype("<u8").tobytes(), durable=False)

    def _forget(self) -> None:
        """Delete the oldest segments beyond the bound, and indexes without a segment."""
        numbers = _numbers(self._folder)
        sizes = {number: _path(self._folder, number, _LINES).stat().st_size for number in numbers}
        total = sum(sizes.values()) + self._segment_bytes
        for number in numbers[:-1]:
            if total <= self._max_bytes:
                break
            _path(self._folder, number, _LINES).unlink(missing_ok=True)
            total -= sizes.pop(number)
        for path in self._folder.glob(f"*{_INDEX}"):
            if not path.stem.isdecimal() or int(path.stem) not in sizes:
                path.unlink(missing_ok=True)


class NewReceipts:
    """New receipts since the creation of this object, of a job that another process may run. Each is read once."""

    def __init__(self, checkpoint: Path, *, from_start: bool = False) -> None:
        self._checkpoint: Final = checkpoint
        self._folder: Final = kept_receipts(checkpoint)
        self._number, self._offset = (0, 0) if from_start else newest_mark(checkpoint)
        # After the mark, so that no receipt is in neither.
        self._before: Final = segment_names(checkpoint)

    def read(self, command_id: str | None = None) -> list[Receipt]:
        """Return the receipts since the last call, oldest first; with an id only those of that command.

        Raises CheckpointError when it cannot be read.
        """
        return [receipt for _, found in self.by_segment(command_id) for receipt in found]

    def by_segment(self, command_id: str | None = None) -> Iterator[tuple[str, list[Receipt]]]:
        """Yield the new receipts by segment, with its name."""
        for number in _numbers(self._folder):
            if number < self._number:
                continue
            if number > self._number:
                self._number, self._offset = number, 0
            data = _read(_path(self._folder, number, _LINES), self._offset)
            data = data[: data.rfind(b"\n") + 1]
            self._offset += len(data)
            if data:
                yield _name(number), _decode(self._folder, number, data, command_id)

    def older(self, command_id: str) -> Iterator[list[Receipt]]:
        """Yield the receipts of a command in each segment from before, newest segment first; most have none."""
        for name in reversed(self._before):
            yield receipts_in(self._checkpoint, name, command_id)


def newest_mark(checkpoint: Path) -> tuple[int, int]:
    """Return the number and size of the newest segment, which change with new receipts; (0, 0) without any."""
    folder = kept_receipts(checkpoint)
    for number in reversed(_numbers(folder)):
        try:
            return number, _path(folder, number, _LINES).stat().st_size
        except FileNotFoundError:
            continue
    return 0, 0


def segment_names(checkpoint: Path) -> list[str]:
    """Return the names of the segments that a checkpoint keeps, oldest first."""
    return [_name(number) for number in _numbers(kept_receipts(checkpoint))]


def receipts_in(checkpoint: Path, name: str, command_id: str | None = None) -> list[Receipt]:
    """Return the receipts in one segment, in order; with an id only those of that command.

    A segment that was deleted meanwhile has none. Raises CheckpointError when it cannot be read.
    """
    folder, number = kept_receipts(checkpoint), int(name.removesuffix(_LINES))
    if command_id is not None and not _may_have(folder, number, command_id):
        return []
    return _decode(folder, number, _whole_lines(folder, number), command_id)


def receipts_backwards(checkpoint: Path) -> Iterator[tuple[str, Receipt]]:
    """Yield all receipts, newest first, with the names of their segments. Reads no more than the caller takes."""
    folder = kept_receipts(checkpoint)
    for number in reversed(_numbers(folder)):
        for line in reversed(_whole_lines(folder, number).splitlines()):
            yield _name(number), _decode(folder, number, line, None)[0]


def _may_have(folder: Path, number: int, command_id: str) -> bool:
    """Return whether a segment may have an id; without an index it may."""
    try:
        hashes = np.fromfile(_path(folder, number, _INDEX), "<u8")
    except OSError:
        return True
    wanted = np.uint64(id_hash(command_id))
    place = int(np.searchsorted(hashes, wanted))
    return place < len(hashes) and bool(hashes[place] == wanted)


def _decode(folder: Path, number: int, data: bytes, command_id: str | None) -> list[Receipt]:
    """Decode whole lines."""
    # Most lines are not wanted, and searching bytes is faster than decoding.
    encoded = b"" if command_id is None else _encoder.encode(command_id)
    if encoded not in data:
        return []
    try:
        found = [_decoder.decode(line) for line in data.splitlines() if encoded in line]
    except msgspec.MsgspecError as e:
        raise _damaged(folder, number, e) from e
    return found if command_id is None else [receipt for receipt in found if receipt.id == command_id]


def _decode_known(folder: Path, number: int, lines: bytes) -> list[_Known]:
    """Decode the needed part of each whole line."""
    try:
        return _known.decode_lines(lines)
    except msgspec.MsgspecError as e:
        raise _damaged(folder, number, e) from e


def _whole_lines(folder: Path, number: int) -> bytes:
    """Return the lines of a segment without a torn one."""
    data = _read(_path(folder, number, _LINES))
    return data[: data.rfind(b"\n") + 1]


def _read(path: Path, offset: int = 0) -> bytes:
    """Read a segment from an offset on; one that was deleted meanwhile has nothing."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as e:
        raise CheckpointError(
            f"The receipts in {path} cannot be read: {e.strerror}. Restore the file."
        ) from e


def _last_line(path: Path) -> bytes | None:
    """Return the last whole line of a segment; None if it has none."""
    with path.open("rb") as file:
        end = whole_lines_bytes(file.fileno())
        start = whole_lines_bytes(file.fileno(), end - 1) if end else 0
        return os.pread(file.fileno(), end - start - 1, start) if end else None


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  # only names are needed
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = (name.removesuffix(_LINES) for name in names if name.endswith(_LINES))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _name(number: int) -> str:
    return f"{number:010}{_LINES}"


def _path(folder: Path, number: int, ending: str) -> Path:
    return folder / f"{number:010}{ending}"


def _damaged(folder: Path, number: int, why: object) -> CheckpointError:
    return CheckpointError(
        f"The receipts in {_path(folder, number, _LINES)} cannot be read: {why}. Restore the file, or delete it."
    )
