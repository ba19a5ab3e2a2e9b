"""State process: a program that answers one question about the state of a job, read and answered as JSON (no Spark).

The server starts it as `python -m penstock.server.service.state_process` for each query, and for each page of keys. Its
low priority and its limits keep a question from hurting the server or the jobs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.without_pandas import keep_pandas_out
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.errors import PenstockError, QueryError, UnknownIdError
from penstock.machine.priority import yield_to_jobs
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.query_answers import AnswerContent
from penstock.savepoints.state_pages import KeyPage, KeysWanted, key_page

__all__ = ["Answer", "KeysQuestion", "QueryQuestion", "Question", "main"]

_MAX_BYTES: Final = 16 << 20


class QueryQuestion(msgspec.Struct, frozen=True, tag="query"):
    """A query over the job with this checkpoint, and its limits."""

    checkpoint: str
    sql: str
    memory_mb: int
    seconds: float
    rows: int


class KeysQuestion(msgspec.Struct, frozen=True, tag="keys"):
    """A request for keys of the job with this checkpoint."""

    checkpoint: str
    wanted: KeysWanted


Question = QueryQuestion | KeysQuestion


class Answer(msgspec.Struct, frozen=True):
    """What was asked for, or an error.

    `wrong` marks an error of the query, `unknown` one about an unknown id; others are of the checkpoint.
    """

    content: AnswerContent | None = None
    page: KeyPage | None = None
    error: str = ""
    wrong: bool = False
    unknown: bool = False


def main() -> None:
    """Answer the question in the input."""
    yield_to_jobs()
    keep_pandas_out()
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(_answer(question))


def _answer(question: Question) -> bytes:
    try:
        return _rows(question) if isinstance(question, QueryQuestion) else _keys(question)
    except PenstockError as e:
        wrong, unknown = isinstance(e, QueryError), isinstance(e, UnknownIdError)
        return msgspec.json.encode(Answer(error=str(e), wrong=wrong, unknown=unknown))


def _rows(question: QueryQuestion) -> bytes:
    # Pages of keys need none of what a query loads.
    from penstock.queries.job_tables import query_job

    limits = QueryLimits(question.memory_mb, question.seconds, question.rows)
    found = msgspec.json.encode(Answer(query_job(question.checkpoint, question.sql, limits).content()))
    if len(found) > _MAX_BYTES:
        raise QueryError(
            f"The result has more than {_MAX_BYTES >> 20} MiB. Select less, aggregate, or add LIMIT."
        )
    return found


def _keys(question: KeysQuestion) -> bytes:
    checkpoint = Checkpoint(Path(question.checkpoint))
    page = key_page(checkpoint, read_described(checkpoint.folder), question.wanted)
    return msgspec.json.encode(Answer(page=page))


if __name__ == "__main__":
    main()
