"""Rows of text files: where each begins, and the first that does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SnapshotError

__all__ = [
    "NOT_FITTING",
    "UnfitRowError",
    "first_unfit",
    "line_of",
    "reason_of",
    "row_bounds",
    "row_parts",
    "row_text",
]

NOT_FITTING: Final = (pa.ArrowException, ValueError, OverflowError, TypeError)
"""The errors that decoders raise for values that do not fit."""

_NEWLINE: Final = 10
_QUOTE: Final = 34
_SHOWN: Final = 80
_PART_BYTES: Final = 64 << 20
_PLACE: Final = re.compile(r" - at `\$(?:\[\d+\])?\.?(.*)`$")
_NO_NUMBER: Final = re.compile(r"^Invalid enum value (.*)$")


@dataclass(eq=False)
class UnfitRowError(SnapshotError):
    """A row of a file does not fit its table's schema."""

    row: int
    """The row in the file, counted from 0."""
    column: str
    value: str
    reason: str
    line: int | None = None
    """The line in the file, counted from 1; None for files without lines."""
    path: str = ""

    def __str__(self) -> str:
        where = f"row {self.row + 1}" if self.line is None else f"line {self.line}"
        column = f", column {self.column!r}" if self.column else ""
        value = f"{_shorten(self.value)} does not fit" if self.value else "the row does not fit"
        return (
            f"{self.path or 'The file'}, {where}{column}: {value} ({self.reason}). Correct it, and try again."
        )


def _shorten(text: str) -> str:
    text = repr(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def reason_of(error: Exception) -> tuple[str, str]:
    """Return why a row does not fit, and where inside of it, such as `value.temperature`."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    place = _PLACE.search(text)
    # A float is a number or one of a few names; report it like any other type.
    reason = _NO_NUMBER.sub(r"Expected `float`, got \1", _PLACE.sub("", text)).rstrip(".")
    return reason, place[1] if place else ""


def row_bounds(data: npt.NDArray[np.uint8], *, quoted: bool) -> npt.NDArray[np.int64]:
    """Return where each row begins and the last ends. If `quoted`, a line end inside of quotes does not end a row."""
    ends = np.flatnonzero(data == _NEWLINE)
    if quoted:
        quotes = np.flatnonzero(data == _QUOTE)
        if len(quotes):
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    bounds = np.zeros(len(ends) + 1, np.int64)
    bounds[1:] = ends + 1
    return bounds if bounds[-1] == len(data) else np.append(bounds, len(data))


def row_parts(bounds: npt.NDArray[np.int64], first: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the rows from `first` on in parts to decode together, each of at most `most` rows and a limit of bytes."""
    last = len(bounds) - 1
    while first < last:
        fitting = int(np.searchsorted(bounds, bounds[first] + _PART_BYTES, "right")) - 1
        end = max(first + 1, min(first + most, last, fitting))
        yield first, end
        first = end


def line_of(data: npt.NDArray[np.uint8], position: int) -> int:
    """Return the line of a byte, counted from 1."""
    return int(np.count_nonzero(data[:position] == _NEWLINE)) + 1


def row_text(data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], row: int) -> str:
    """Return a row for messages, without its line end."""
    return data[bounds[row] : bounds[row + 1]].tobytes().decode("utf-8", "backslashreplace").rstrip("\r\n")


def first_unfit(convert: Callable[[int], Any], count: int) -> tuple[int, Exception]:
    """Return the first of `count` rows that does not fit, and the error of the rows up to it.

    `convert` converts the given number of rows, counted from the first, and raises if one of them does not fit.
    """
    fitting, unfit = 0, count
    error: Exception = ValueError("the rows do not fit together")
    while fitting < unfit:
        middle = (fitting + unfit) // 2
        try:
            convert(middle + 1)
            fitting = middle + 1
        except NOT_FITTING as e:
            unfit, error = middle, e
    return min(unfit, count - 1), error
