"""State client: has questions about the state of jobs answered, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.errors import CheckpointError, ExternalSystemError, PenstockError, QueryError, UnknownIdError
from penstock.queries.query_answers import AnswerContent
from penstock.savepoints.state_pages import KeyPage
from penstock.server.runs.processes import job_environment
from penstock.server.service.state_process import Answer, KeysQuestion, QueryQuestion, Question

__all__ = ["StateClient"]

_PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.server.service.state_process")
_PATIENCE_S: Final = 25.0
# How long a process may start and read the state, beside the time that a query itself may take.
_READING_S: Final = 60.0


class StateClient:
    """A client that starts a process for each question: at most one query and one reading of keys at a time.

    Args:
        program: the command that starts the process.
        patience_s: how long to wait for the questions of others before telling the caller to retry.
        reading_s: how long a process may take, beside the limit of a query, before it is killed.

    """

    def __init__(
        self,
        program: Sequence[str] = _PROGRAM,
        patience_s: float = _PATIENCE_S,
        reading_s: float = _READING_S,
    ) -> None:
        self._program: Final = tuple(program)
        self._patience_s: Final = patience_s
        self._reading_s: Final = reading_s
        self._query_turn: Final = threading.Lock()
        self._keys_turn: Final = threading.Lock()

    def query(self, question: QueryQuestion) -> AnswerContent:
        """Return the answer of a query.

        Raises QueryError, CheckpointError, or ExternalSystemError if the caller should retry.
        """
        longest_s = question.seconds + self._reading_s
        overdue = QueryError(
            f"The query and what it reads took more than {longest_s:g} s. Name fewer columns, or take a dump."
        )
        answer = self._ask(question, longest_s, self._query_turn, overdue)
        assert answer.content is not None
        return answer.content

    def keys(self, question: KeysQuestion) -> KeyPage:
        """Return a page of keys.

        Raises UnknownIdError, CheckpointError, or ExternalSystemError if the caller should retry.
        """
        overdue = CheckpointError(
            f"Reading the keys took more than {self._reading_s:g} s. Name one key, or take a dump."
        )
        answer = self._ask(question, self._reading_s, self._keys_turn, overdue)
        assert answer.page is not None
        return answer.page

    def _ask(
        self, question: Question, longest_s: float, turn: threading.Lock, overdue: PenstockError
    ) -> Answer:
        """Return the answer, which is no error. Raises `overdue` when it took too long, and the process was killed."""
        if not turn.acquire(timeout=self._patience_s):
            raise ExternalSystemError(
                "The state of jobs is being read for other users. Try again in a few seconds."
            )
        try:
            done = subprocess.run(
                self._program,
                input=msgspec.json.encode(question),
                capture_output=True,
                env=job_environment(),
                timeout=longest_s,
                check=False,
                # Its low priority only counts against other sessions if it has a separate session.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise overdue from None
        finally:
            turn.release()
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise CheckpointError(
                f"The process that reads state ended with {done.returncode}: "
                f"{lines[-1] if lines else 'it said nothing'}"
            )
        answer = msgspec.json.decode(done.stdout, type=Answer)
        if answer.error:
            kind = QueryError if answer.wrong else UnknownIdError if answer.unknown else CheckpointError
            raise kind(answer.error)
        return answer
