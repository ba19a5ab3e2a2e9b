"""Worker output: log what functions print, and limit the size of its file."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Final, Self

from penstock.jobs.job_log import job_log

__all__ = ["WorkerOutput", "output_log"]

output_log: Final = logging.getLogger(f"{job_log.name}.output")
"""What functions of the job print and log."""

_POLL_S: Final = 0.5
# Limits for the log at each look; the file has all lines in full.
_MAX_LINES: Final = 50
_MAX_CHARACTERS: Final = 2000
_READ_BYTES: Final = 1 << 20


class WorkerOutput:
    """Follows a file that other processes append to; a context manager.

    Logs new lines one by one, at most 100 per second. When the file is larger than `max_bytes`, this copies it to
    `NAME.1` next to it, over an earlier copy, and empties it.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path: Final = path
        self._max_bytes: Final = max_bytes
        self._position = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._ends: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._follow, name="worker output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()

    def look(self) -> None:
        """Log the lines since the last look, and empty the file when it is too large."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                # If more came at once than this, only the last part is read.
                skipped = size - _READ_BYTES > self._position
                file.seek(max(self._position, size - _READ_BYTES))
                found = self._rest + file.read(_READ_BYTES)
                self._position = file.tell()
            *lines, self._rest = found.split(b"\n")
            self._rest = self._rest[-_READ_BYTES:]
            self._log(lines, is_part=skipped)
            if self._position > self._max_bytes:
                self._empty_file()
        except FileNotFoundError:
            # If another session runs the job, its output goes elsewhere.
            return
        except OSError as e:
            output_log.warning("What the job prints, in %s, cannot be followed: %s.", self._path, e.strerror)

    def _follow(self) -> None:
        ends = False
        while not ends:
            ends = self._ends.wait(_POLL_S)
            self.look()

    def _log(self, lines: list[bytes], *, is_part: bool) -> None:
        texts = [text for line in lines if (text := line.decode(errors="backslashreplace").rstrip())]
        for text in texts[:_MAX_LINES]:
            output_log.info("%s", text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ...")
        left = len(texts) - _MAX_LINES
        if left > 0 or is_part:
            count = f"{left:,} more lines" if left > 0 and not is_part else "More lines"
            output_log.info("%s were printed within a moment; they are in %s.", count, self._path)

    def _empty_file(self) -> None:
        """Copy the file to its other name and empty it. A line printed at this very moment may be lost."""
        # The writers keep the file open and append to it, so renaming it would not stop them.
        shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
        os.truncate(self._path, 0)
        self._position = 0
