"""The verb `penstock query`: SQL over the state of a job, a dump or a savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from penstock.cli.output import Output, OutputOption, escape, print_json, stderr, stdout
from penstock.cli.target import Servers, asks_server

if TYPE_CHECKING:
    from penstock.queries.query_answers import AnswerContent

__all__ = ["query"]


@asks_server()
def query(
    servers: Servers,
    place: Annotated[
        str, typer.Argument(metavar="JOB", help="A job, its checkpoint, or the place of a dump or savepoint.")
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT over state.STEP.")],
    memory_mb: Annotated[
        int, typer.Option(metavar="N", help="The memory that the query may take, in MiB.")
    ] = 1024,
    seconds: Annotated[float, typer.Option(metavar="N", help="How long the query may take.")] = 30.0,
    rows: Annotated[int, typer.Option(metavar="N", help="How many rows the result may have.")] = 100_000,
    output: OutputOption = Output.text,
) -> None:
    """Answer a query in SQL over the state of a job, which may be running, or of a dump or savepoint.

    The state of a job is that after its newest committed micro-batch, which the answer names.
    """
    _print(_answer(servers, place, sql, (memory_mb, seconds, rows)), output)


def _answer(servers: Servers, place: str, sql: str, most: tuple[int, float, int]) -> AnswerContent:
    from penstock.errors import NotThereError
    from penstock.queries.locked_engine import QueryLimits
    from penstock.queries.snapshot_tables import answer_from_snapshot

    limits = QueryLimits(*most)
    try:
        return answer_from_snapshot(place, sql, limits).content()
    except NotThereError:
        if "://" in place and not _is_checkpoint(place):
            raise
        with servers.job(place) as target:
            return target.query(sql, limits)


def _is_checkpoint(place: str) -> bool:
    """Return whether a place on an object store that is not a snapshot is a checkpoint."""
    from penstock.checkpoints.stored_checkpoint import is_stored
    from penstock.checkpoints.stored_copies import holds_checkpoint

    return is_stored(place) and holds_checkpoint(place)


def _print(content: AnswerContent, output: Output) -> None:
    if output is Output.json:
        print_json(msgspec.to_builtins(content))
        return
    table = Table(*(escape(column.name) for column in content.columns))
    for row in content.rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    stdout.print(table)
    count = "1 row" if len(content.rows) == 1 else f"{len(content.rows):,} rows"
    stderr.print(f"{count} after micro-batch {content.batch}.")
