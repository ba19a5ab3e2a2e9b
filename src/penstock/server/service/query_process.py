"""Query process: a program that answers one query over the state of a job, read and answered as JSON.

The server starts it as `python -m penstock.server.service.query_process` for each query, with the lowest priority, so
that no query can hurt the server or the jobs.
"""

from __future__ import annotations

import sys

import msgspec

from penstock.base.without_pandas import keep_pandas_out
from penstock.errors import PenstockError, QueryError
from penstock.machine.priority import yield_process
from penstock.queries.job_tables import query_job
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.query_answers import AnswerContent

__all__ = ["Answered", "QueryWanted", "main"]

_MAX_BYTES = 16 << 20


class QueryWanted(msgspec.Struct, frozen=True):
    """A query over the job with this checkpoint, and its limits."""

    checkpoint: str
    sql: str
    memory_mb: int
    seconds: float
    rows: int


class Answered(msgspec.Struct, frozen=True):
    """The answer, or an error; `wrong` marks an error of the query, others are of the checkpoint."""

    content: AnswerContent | None = None
    error: str = ""
    wrong: bool = False


def main() -> None:
    """Answer the query in the input."""
    yield_process()
    keep_pandas_out()
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=QueryWanted)
    sys.stdout.buffer.write(_answer(wanted))


def _answer(wanted: QueryWanted) -> bytes:
    try:
        limits = QueryLimits(wanted.memory_mb, wanted.seconds, wanted.rows)
        found = msgspec.json.encode(Answered(query_job(wanted.checkpoint, wanted.sql, limits).content()))
        if len(found) > _MAX_BYTES:
            raise QueryError(
                f"The result has more than {_MAX_BYTES >> 20} MiB. Select less, aggregate, or add LIMIT."
            )
    except PenstockError as e:
        return msgspec.json.encode(Answered(error=str(e), wrong=isinstance(e, QueryError)))
    return found


if __name__ == "__main__":
    main()
