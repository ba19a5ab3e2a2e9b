"""Interval files: what the tasks of an interval did, durable before any of it is visible or committed."""

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


class Interval(msgspec.Struct):
    """The positions of all streams after an interval, as offsets, and what each task did."""

    positions: dict[str, dict[str, Any]]
    tasks: list[TaskLog]


_decoder: Final = msgspec.json.Decoder(Interval)


class IntervalFiles:
    """The files of the newest intervals, by number, beside Spark's logs."""

    def __init__(self, spark_folder: Path, retained: int) -> None:
        self._folder: Final = spark_folder / INTERVALS
        self._retained: Final = retained

    def prepare(self) -> None:
        """Make the folder."""
        make_folder(self._folder)

    def write(self, number: int, interval: Interval) -> None:
        """Write an interval durably, and remove one that is no longer needed."""
        write_atomically(self._folder / str(number), msgspec.json.encode(interval))
        with contextlib.suppress(FileNotFoundError):
            (self._folder / str(number - self._retained)).unlink()

    def read(self, number: int) -> Interval | None:
        """Return an interval, or None if it was not written. Raises CheckpointError when it is damaged."""
        path = self._folder / str(number)
        try:
            return _decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as e:
            raise CheckpointError(
                f"{path} is damaged ({e}). Restore it from a copy of the checkpoint."
            ) from e

    def positions_before(self, number: int, first: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return where the streams stand before an interval; `first` is where they stand before the first one."""
        if number == 0:
            return dict(first)
        before = self.read(number - 1)
        if before is None:
            raise CheckpointError(
                f"{self._folder / str(number - 1)} is missing, though interval {number} follows it. Restore it from a "
                "copy of the checkpoint."
            )
        return {**first, **before.positions}
