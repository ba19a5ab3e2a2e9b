"""State reader: a program that reads keys of jobs with its own Spark, and answers in lines of JSON.

The server starts it as `python -m penstock.server.service.state_reader` when a user looks at the state of a job, and
keeps it running, since its start takes some seconds. It ends when its input ends, for example with the server, and
after a long time without a question.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.errors import PenstockError, UnknownIdError
from penstock.savepoints.state_pages import KeyPage, KeysWanted, key_page

__all__ = ["READY", "STORE", "Answer", "Question", "main"]

STORE: Final = "--store="
"""The argument of a reader that also reads state on object stores."""
READY: Final = b"ready\n"
"""The first line of output: from now on, questions are answered without delay."""

_IDLE_S: Final = 300.0


class Question(msgspec.Struct, frozen=True):
    """A request for keys of the job with this checkpoint."""

    checkpoint: str
    wanted: KeysWanted


class Answer(msgspec.Struct, frozen=True):
    """The keys, or an error. `unknown` marks an error about an unknown id."""

    page: KeyPage | None = None
    error: str = ""
    unknown: bool = False


def main() -> None:
    """Answer questions until the input ends."""
    # Spark's own output goes to stderr, so that it is not mistaken for an answer.
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)
        _answer_all(answers)


def _answer_all(answers: BinaryIO) -> None:
    from penstock.spark.reading_session import reading_session

    store = next((one.removeprefix(STORE) for one in sys.argv[1:] if one.startswith(STORE)), "")
    with reading_session(store=store) as session:
        answers.write(READY)
        for line in iter(_next_line, b""):
            question = msgspec.json.decode(line, type=Question)
            try:
                checkpoint = Checkpoint(Path(question.checkpoint))
                state = read_described(checkpoint.folder)
                answer = Answer(key_page(session, checkpoint, state, question.wanted))
            except PenstockError as e:
                answer = Answer(error=str(e), unknown=isinstance(e, UnknownIdError))
            answers.write(msgspec.json.encode(answer) + b"\n")


def _next_line() -> bytes:
    """Return the next question; empty at the end of the input, or after a long time without a question."""
    ready, _, _ = select.select([sys.stdin.buffer], [], [], _IDLE_S)
    return sys.stdin.buffer.readline() if ready else b""


if __name__ == "__main__":
    main()
