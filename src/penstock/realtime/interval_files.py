"""Interval files: the work of an interval's tasks, on disk before any of it is visible or committed.

`N` has the positions after an interval, `N.rounds` the work of each task. `N` decides, so it is written last. Only the
newest interval may have to be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import make_folder, write_atomically
from penstock.errors import CheckpointError
from penstock.realtime.messages import TaskLog
from penstock.runtime.cuts import INTERVALS

__all__ = ["Interval", "IntervalFiles"]

_KEPT_ROUNDS: Final = 2


class Interval(msgspec.Struct):
    """The positions of all streams after an interval, as offsets, and what each task did."""

    positions: dict[str, dict[str, Any]]
    tasks: list[TaskLog]


class _Positions(msgspec.Struct):
    positions: dict[str, dict[str, Any]]


_positions: Final = msgspec.json.Decoder(_Positions)
_rounds: Final = msgspec.msgpack.Decoder(list[TaskLog])


class IntervalFiles:
    """The files of the newest intervals, by number, beside Spark's logs."""

    def __init__(self, spark_folder: Path, retained: int) -> None:
        self._folder: Final = spark_folder / INTERVALS
        self._retained: Final = retained

    def prepare(self) -> None:
        """Make the folder."""
        make_folder(self._folder)

    def write(self, number: int, interval: Interval) -> None:
        """Write an interval durably, and remove files of older ones that are no longer needed."""
        write_atomically(self._rounds(number), msgspec.msgpack.encode(interval.tasks))
        write_atomically(self._path(number), msgspec.json.encode(_Positions(interval.positions)))
        for path in (self._rounds(number - _KEPT_ROUNDS), self._path(number - self._retained)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def read(self, number: int) -> Interval | None:
        """Return an interval, or None if it was not written. Raises CheckpointError when it is damaged."""
        positions = self._positions(number)
        if positions is None:
            return None
        path = self._rounds(number)
        try:
            return Interval(positions, _rounds.decode(path.read_bytes()))
        except (OSError, msgspec.DecodeError) as e:
            raise _damaged(path, e) from e

    def positions_before(self, number: int, first: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the positions of the streams before an interval; `first` are those before the first one."""
        if number == 0:
            return dict(first)
        before = self._positions(number - 1)
        if before is None:
            raise CheckpointError(
                f"{self._path(number - 1)} is missing, though interval {number} follows it. Restore it from a copy of "
                "the checkpoint."
            )
        return {**first, **before}

    def _positions(self, number: int) -> dict[str, dict[str, Any]] | None:
        path = self._path(number)
        try:
            return _positions.decode(path.read_bytes()).positions
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as e:
            raise _damaged(path, e) from e

    def _path(self, number: int) -> Path:
        return self._folder / str(number)

    def _rounds(self, number: int) -> Path:
        return self._folder / f"{number}.rounds"


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read ({error}). Restore it from a copy of the checkpoint.")
