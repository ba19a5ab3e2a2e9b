"""The verb `penstock query`: SQL over the state of a job, a dump or a savepoint."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli.job_target import Patience
from penstock.cli.output import Output, OutputOption, escaped, print_json, stdout
from penstock.cli.target import Servers, TimeoutOption, asks_server

if TYPE_CHECKING:
    import pyarrow as pa

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
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Answer a query in SQL over the state of a job, which may be running, or of a dump or savepoint.

    The state of a job is that after its newest micro-batch, of which a dump is made for the query.
    """
    from penstock.errors import NotThereError
    from penstock.queries.locked_engine import QueryLimits
    from penstock.queries.snapshot_tables import query_snapshot

    limits = QueryLimits(memory_mb, seconds, rows)
    try:
        found = query_snapshot(place, sql, limits)
    except NotThereError:
        if "://" in place:
            raise
        with tempfile.TemporaryDirectory(prefix="penstock-query-") as folder, servers.job(place) as target:
            dump = str(Path(folder) / "dump")
            target.dump(dump, "parquet", None, Patience(timeout))
            found = query_snapshot(dump, sql, limits)
    _print(found, output)


def _print(found: pa.Table, output: Output) -> None:
    from penstock.snapshots.table_formats import json_rows

    rows: list[dict[str, Any]] = [row for batch in found.to_batches() for row in json_rows(batch)]
    if output is Output.json:
        print_json(rows)
        return
    table = Table(*map(escaped, found.column_names))
    for row in rows:
        table.add_row(*("" if value is None else escaped(str(value)) for value in row.values()))
    stdout.print(table)
