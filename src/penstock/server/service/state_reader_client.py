"""State reader client: queries the state reader, a process with its own Spark, so that the server needs no Spark."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from penstock.errors import CheckpointError, ExternalSystemError, UnknownIdError
from penstock.savepoints.state_pages import KeyPage
from penstock.server.runs.processes import job_environment, kill_all, process_of
from penstock.server.service.state_reader import Answer, Question

__all__ = ["READER", "StateReader"]

READER: Final = (sys.executable, "-P", "-m", "penstock.server.service.state_reader")
"""The command that starts a reader of folders."""
_OUTPUT_FILE: Final = "state-reader.log"
_PATIENCE_S: Final = 25.0
_LONGEST_S: Final = 120.0
_PATIENCE_FOR_THE_SAME: Final = 30


class StateReader:
    """A client that starts a state reader on demand, and asks it one question at a time.

    Args:
        home: the folder of the manager, for the log of the reader's output.
        program: the command that starts the reader.
        patience_s: how long to wait for an answer before telling the caller to retry.
        longest_s: how long a reader may work before a different question kills it. While the same question is
            repeated, it may take much longer, as a large state needs.

    """

    def __init__(
        self,
        home: Path,
        program: Sequence[str] = READER,
        patience_s: float = _PATIENCE_S,
        longest_s: float = _LONGEST_S,
    ) -> None:
        self._output: Final = home / _OUTPUT_FILE
        self._program: Final = tuple(program)
        self._patience_s: Final = patience_s
        self._longest_s: Final = longest_s
        self._turn: Final = threading.Lock()
        self._reader: _Reader | None = None

    def ask(self, question: Question) -> KeyPage:
        """Return the answer to a question.

        Raises UnknownIdError, CheckpointError, or ExternalSystemError if the caller should retry.
        """
        deadline_s = time.monotonic() + self._patience_s
        if not self._turn.acquire(timeout=self._patience_s):
            raise _busy("other users are reading state")
        try:
            return self._answer(msgspec.json.encode(question) + b"\n", deadline_s)
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the reader, if one runs."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()

    def _answer(self, line: bytes, deadline_s: float) -> KeyPage:
        reader = self._reader
        if reader is None or reader.is_overdue(line) or not reader.is_alive():
            self.close()
            reader = self._reader = _Reader(self._program, self._output, self._longest_s)
        reply = reader.ask(line, deadline_s)
        if reply is None:
            raise self._no_answer(reader)
        answer = msgspec.json.decode(reply, type=Answer)
        if answer.page is not None:
            return answer.page
        raise (UnknownIdError if answer.unknown else CheckpointError)(answer.error)

    def _no_answer(self, reader: _Reader) -> CheckpointError | ExternalSystemError:
        if reader.is_alive():
            return _busy(
                "the state is being read" if reader.has_started else "the process that reads it is starting"
            )
        if reader.has_started:
            return CheckpointError(f"The process that reads state died; see {self._output}.")
        return CheckpointError(
            f"The process that reads state cannot start; see {self._output}, or run penstock doctor."
        )


def _busy(why: str) -> ExternalSystemError:
    return ExternalSystemError(
        f"The state cannot be shown yet: {why}. Try again in a few seconds, or take a dump."
    )


class _Reader:
    """A state reader process."""

    def __init__(self, program: Sequence[str], output: Path, longest_s: float) -> None:
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "wb") as opened:
            self._process: Final = subprocess.Popen(
                program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                env=job_environment(),
                start_new_session=True,
            )
        self._begun: Final = process_of(self._process.pid)
        self._lines: Final[queue.Queue[bytes]] = queue.Queue()
        self._longest_s: Final = longest_s
        # The pending question, and since when. None before the first one, while the process starts.
        self._line: bytes | None = None
        self._since_s: float | None = time.monotonic()
        assert self._process.stdout is not None
        threading.Thread(
            target=self._read, args=(self._process.stdout,), name="state-reader", daemon=True
        ).start()

    def is_alive(self) -> bool:
        """Return whether the process is alive, so that it can still answer."""
        return self._process.poll() is None

    def is_overdue(self, line: bytes) -> bool:
        """Return whether the answer to the pending question is overdue. Repeating the question allows much more."""
        if self._since_s is None:
            return False
        max_s = self._longest_s * (_PATIENCE_FOR_THE_SAME if line == self._line else 1)
        return time.monotonic() - self._since_s > max_s

    @property
    def has_started(self) -> bool:
        """Whether the process has started, so that it answers questions."""
        return self._line is not None

    def ask(self, line: bytes, deadline_s: float) -> bytes | None:
        """Return the answer; None if it does not arrive in time, or the process has ended.

        Repeating a question returns its answer if that arrived too late the first time.
        """
        if self._since_s is not None:
            late = self._next(deadline_s)
            if late is None:
                return None
            if line == self._line:
                self._line = b""
                return late
        assert self._process.stdin is not None
        self._since_s, self._line = time.monotonic(), line
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return self._next(deadline_s)

    def end(self) -> None:
        """Kill the process, with its JVM and workers."""
        if self._begun is not None:
            kill_all(self._begun)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _next(self, deadline_s: float) -> bytes | None:
        """Return the next line; None if it does not arrive in time, or the process has ended."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            return None
        if not line:
            # The process has ended. The next caller must learn this too.
            self._lines.put(line)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            return None
        self._since_s = None
        self._line = self._line or b""
        return line

    def _read(self, output: IO[bytes]) -> None:
        with contextlib.suppress(ValueError):
            for line in output:
                self._lines.put(line)
        self._lines.put(b"")
