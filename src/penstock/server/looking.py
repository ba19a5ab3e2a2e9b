"""Looking into state: asks the state reader, a process with a Spark of its own, so that the server needs none."""

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
from penstock.jobs.state_pages import KeyPage
from penstock.server.processes import job_environment, kill_all, process_of
from penstock.server.state_reader import Answer, Question

__all__ = ["StateReader"]

_PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.server.state_reader")
_OUTPUT_FILE: Final = "state-reader.log"
_PATIENCE_S: Final = 25.0
_LONGEST_S: Final = 120.0


class StateReader:
    """Asks a state reader, which is started when somebody asks, one question at a time.

    Args:
        home: the folder of the manager, which gets a log of what the reader prints.
        program: the command that starts it.
        patience_s: how long to wait for an answer before whoever asks is told to ask again.
        longest_s: after how long a reader that does not answer is killed.

    """

    def __init__(
        self,
        home: Path,
        program: Sequence[str] = _PROGRAM,
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
        """The answer to a question. Raises UnknownIdError, CheckpointError, and ExternalSystemError to ask again."""
        deadline_s = time.monotonic() + self._patience_s
        if not self._turn.acquire(timeout=self._patience_s):
            raise _busy("others are reading state")
        try:
            return self._answer(msgspec.json.encode(question) + b"\n", deadline_s)
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()

    def _answer(self, line: bytes, deadline_s: float) -> KeyPage:
        reader = self._reader
        if reader is None or reader.is_overdue() or not reader.lives():
            self.close()
            reader = self._reader = _Reader(self._program, self._output, self._longest_s)
        if not reader.is_ready(deadline_s):
            if reader.lives():
                raise _busy("the process that reads state is starting or at work")
            raise CheckpointError(
                f"The process that reads state cannot start; {self._output} says why. penstock doctor looks for the "
                "cause."
            )
        told = reader.ask(line, deadline_s)
        if told is None:
            if reader.lives():
                raise _busy("the state is large")
            raise CheckpointError(f"The process that reads state has died; {self._output} says why.")
        answer = msgspec.json.decode(told, type=Answer)
        if answer.page is not None:
            return answer.page
        raise (UnknownIdError if answer.unknown else CheckpointError)(answer.error)


def _busy(why: str) -> ExternalSystemError:
    return ExternalSystemError(
        f"The state cannot be shown yet: {why}. Ask again in some seconds, or take a dump."
    )


class _Reader:
    """A process that reads state. An answer that nobody waited for any longer is dropped."""

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
        # When what is being waited for was begun: the start, or a question.
        self._since_s: float | None = time.monotonic()
        assert self._process.stdout is not None
        threading.Thread(
            target=self._read, args=(self._process.stdout,), name="state-reader", daemon=True
        ).start()

    def lives(self) -> bool:
        """Whether it can still answer."""
        return self._process.poll() is None

    def is_overdue(self) -> bool:
        """Whether it has been silent for longer than it may be."""
        return self._since_s is not None and time.monotonic() - self._since_s > self._longest_s

    def is_ready(self, deadline_s: float) -> bool:
        """Wait until it has nothing more to say: it has started, and every question is answered."""
        return self._since_s is None or self._next(deadline_s) is not None

    def ask(self, line: bytes, deadline_s: float) -> bytes | None:
        """The answer, None when it did not come in time, or never will."""
        assert self._process.stdin is not None
        self._since_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return self._next(deadline_s)

    def end(self) -> None:
        """Kill it, with its JVM and workers."""
        if self._begun is not None:
            kill_all(self._begun)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _next(self, deadline_s: float) -> bytes | None:
        """The line that is waited for."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            return None
        if not line:
            # It has ended; whoever looks for the next line is to learn that, too.
            self._lines.put(line)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            return None
        self._since_s = None
        return line

    def _read(self, output: IO[bytes]) -> None:
        with contextlib.suppress(ValueError):
            for line in output:
                self._lines.put(line)
        self._lines.put(b"")
