"""The command line of savepoints: `penstock savepoint`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, escape, print_json, stderr, stdout
from penstock.cli.target import (
    NO_PLACES,
    JobArgument,
    NoWaitOption,
    Servers,
    TimeoutOption,
    asks_server,
)

__all__ = ["savepoint"]


@asks_server()
def savepoint(
    servers: Servers,
    context: typer.Context,
    job: JobArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where savepoints are. Default: the folder CHECKPOINT.savepoints, or the server's.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the savepoints instead.")] = False,
    dispose: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Delete a savepoint instead, by its id or its place."),
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Take, list or delete savepoints of a job, which may be running.

    A savepoint holds the states, the positions in the streams, and what the sources keep. It belongs to the user:
    nothing else deletes it.
    """
    with (
        servers.job(
            job, context, checkpoint_only={"to": NO_PLACES}, server_only=("no_wait", "timeout")
        ) as target,
    ):
        if show:
            _print_savepoints(target.list_savepoints(to), output)
        elif dispose is not None:
            stderr.print(f"Deleted {escape(target.delete_savepoint(dispose))}.")
        else:
            done = target.take_savepoint(to, Patience(timeout, wait=not no_wait))
            details = print_outcome(done, output)
            if details is not None:
                print(details["id"])


def _print_savepoints(found: list[dict[str, Any]], output: Output) -> None:
    if output is Output.json:
        print_json(found)
        return
    table = Table()
    table.add_column("id", no_wrap=True, overflow="fold")
    for name in ("job", "micro-batch", "taken at", "place"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(
            one["id"], escape(one["job"]), str(one["batch"]), one["created_at"] or "", escape(one["uri"])
        )
    stdout.print(table)
