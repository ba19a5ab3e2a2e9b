"""Query client: answers queries one at a time, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.errors import CheckpointError, ExternalSystemError, QueryError
from penstock.queries.query_answers import AnswerContent
from penstock.server.runs.processes import job_environment
from penstock.server.service.query_process import Answered, QueryWanted

__all__ = ["QueryClient"]

_PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.server.service.query_process")
_PATIENCE_S: Final = 25.0
# How long a process may start and read the state, beside the time that the query itself may take.
_READING_S: Final = 30.0


class QueryClient:
    """A client that starts a process for each query.

    Args:
        program: the command that starts the process.
        patience_s: how long to wait for the queries of others before telling the caller to retry.
        reading_s: how long a process may take, beside the limit of its query, before it is killed.

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
        self._turn: Final = threading.Lock()

    def ask(self, wanted: QueryWanted) -> AnswerContent:
        """Return the answer. Raises QueryError, CheckpointError, or ExternalSystemError if the caller should retry."""
        if not self._turn.acquire(timeout=self._patience_s):
            raise ExternalSystemError("Other queries are being answered. Try again in a few seconds.")
        try:
            return self._answer(wanted)
        finally:
            self._turn.release()

    def _answer(self, wanted: QueryWanted) -> AnswerContent:
        longest_s = wanted.seconds + self._reading_s
        try:
            done = subprocess.run(
                self._program,
                input=msgspec.json.encode(wanted),
                capture_output=True,
                env=job_environment(),
                timeout=longest_s,
                check=False,
                # Its low priority only counts against other sessions if it has a separate session.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise QueryError(
                f"The query and what it reads took more than {longest_s:g} s. Name fewer columns, or take a dump."
            ) from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise CheckpointError(
                f"The process of the query ended with {done.returncode}: {lines[-1] if lines else 'it said nothing'}"
            )
        answered = msgspec.json.decode(done.stdout, type=Answered)
        if answered.content is not None:
            return answered.content
        raise (QueryError if answered.wrong else CheckpointError)(answered.error)
