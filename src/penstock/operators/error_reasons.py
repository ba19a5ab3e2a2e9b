"""Reasons: why a record is a dead letter or a command failed, in words that are the same in every run.

So they name no folder of this machine, no temporary archive and no place in memory.
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

__all__ = ["reason_in_short", "reason_of", "unfit"]

# The end of what Python says of an object whose class says nothing.
_PLACE_IN_MEMORY: Final = re.compile(r" at 0x[0-9A-Fa-f]{6,16}>")
_MOST_SHOWN: Final = 500


def reason_of(error: Exception) -> str:
    """The traceback without penstock's own frames; files are told as their modules are imported."""
    frames = [
        traceback.FrameSummary(
            _file_of(frame),
            line_number,
            frame.f_code.co_name,
            line=linecache.getline(frame.f_code.co_filename, line_number, frame.f_globals),
            lookup_line=False,
        )
        for frame, line_number in traceback.walk_tb(error.__traceback__)
        if not _is_own(frame)
    ]
    lines = traceback.StackSummary.from_list(frames).format() + traceback.format_exception_only(error)
    return _told("".join(lines).strip())


def reason_in_short(error: Exception) -> str:
    """What was raised, in a line."""
    return " ".join(_told(f"{type(error).__name__}: {error}").split())[:_MOST_SHOWN]


def unfit(record: object, kind: RecordType, error: SchemaError, what: str = "the emitted record") -> str:
    """Why something that code has made is a dead letter: it does not fit the type that is declared."""
    try:
        shown = repr(record)
    except Exception:  # the class is the user's
        shown = f"of {type(record).__name__}"
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[:_MOST_SHOWN]}..."
    return _told(f"{what} {shown} does not fit {kind!r}: {error}")


def _is_own(frame: FrameType) -> bool:
    return _module_of(frame).partition(".")[0] == "penstock"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _file_of(frame: FrameType) -> str:
    """The file of a frame: its end that the name of the module tells, else its own name."""
    path = PurePath(frame.f_code.co_filename)
    module = tuple(_module_of(frame).split("."))
    for end in (module, (*module, "__init__")):
        if (*path.parts[:-1], path.stem)[-len(end) :] == end:
            return str(PurePath(*end[:-1], path.name))
    return path.name


def _told(text: str) -> str:
    """A text that can be written anywhere, without what differs between runs."""
    # Errors of imports name the archive in which the job's code has come.
    for folder in sorted(filter(_is_archive, sys.path), key=len, reverse=True):
        text = text.replace(folder + os.sep, "")
    return _PLACE_IN_MEMORY.sub(">", text).encode("utf-8", "backslashreplace").decode()


def _is_archive(folder: str) -> bool:
    return folder.endswith((".zip", ".egg", ".whl"))
