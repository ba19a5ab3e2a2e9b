"""Reasons: why a record is a dead letter or a command failed, as text that is the same in every run.

A reason therefore never contains a local folder, a temporary archive or a memory address.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from pathlib import PurePath
from types import FrameType
from typing import Final

from penstock.errors import SchemaError
from penstock.records.types import RecordType

__all__ = ["misfit_reason", "reason_in_short", "reason_of"]

# The end of Python's default repr of an object.
_MEMORY_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]{6,16}>")
_MAX_LENGTH: Final = 500


def reason_of(error: Exception) -> str:
    """Return the traceback without penstock's own frames, with files named relative to their import root."""
    frames = [
        traceback.FrameSummary(
            _file_of(frame),
            line_number,
            frame.f_code.co_name,
            line=linecache.getline(frame.f_code.co_filename, line_number, frame.f_globals),
            lookup_line=False,
        )
        for frame, line_number in traceback.walk_tb(error.__traceback__)
        if _module_of(frame).partition(".")[0] != "penstock"
    ]
    lines = traceback.StackSummary.from_list(frames).format() + traceback.format_exception_only(error)
    return _strip_run("".join(lines).strip())


def reason_in_short(error: Exception) -> str:
    """Return the error in one line, cut off at 500 characters."""
    return " ".join(_strip_run(f"{type(error).__name__}: {error}").split())[:_MAX_LENGTH]


def misfit_reason(
    record: object, kind: RecordType, error: SchemaError, what: str = "the emitted record"
) -> str:
    """Return the reason of a dead letter for a value from user code that does not fit its declared type."""
    try:
        shown = repr(record)
    except Exception:  # the class is the user's
        shown = f"of {type(record).__name__}"
    if len(shown) > _MAX_LENGTH:
        shown = f"{shown[:_MAX_LENGTH]}..."
    return _strip_run(f"{what} {shown} does not fit {kind!r}: {error}")


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _file_of(frame: FrameType) -> str:
    """Return the file of a frame: the part of its path that matches the module's name, else the file name."""
    path = PurePath(frame.f_code.co_filename)
    module = tuple(_module_of(frame).split("."))
    for end in (module, (*module, "__init__")):
        if (*path.parts[:-1], path.stem)[-len(end) :] == end:
            return str(PurePath(*end[:-1], path.name))
    return path.name


def _strip_run(text: str) -> str:
    """Return the text without anything specific to this run, in characters that can be encoded anywhere."""
    # Import errors contain the path of the archive with the job's code.
    archives = [folder for folder in sys.path if folder.endswith((".zip", ".egg", ".whl"))]
    for folder in sorted(archives, key=len, reverse=True):
        text = text.replace(folder + os.sep, "")
    return _MEMORY_ADDRESS.sub(">", text).encode("utf-8", "backslashreplace").decode()
