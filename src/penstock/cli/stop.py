"""The command line of stopping: `penstock stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, stderr
from penstock.cli.target import (
    NO_PLACES,
    JobArgument,
    NoWaitOption,
    Servers,
    TimeoutOption,
    asks_server,
)

__all__ = ["stop"]


@asks_server()
def stop(
    servers: Servers,
    context: typer.Context,
    job: JobArgument,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Take a savepoint after the job has stopped.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--savepoint-path",
            metavar="URI",
            help="Take a savepoint, and put it here. Default: the folder CHECKPOINT.savepoints, or the server's.",
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Process all waiting input first.")] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Stop a running job between two micro-batches, optionally with a savepoint."""
    wanted = with_savepoint or to is not None
    with servers.job(job, context, checkpoint_only={"to": NO_PLACES}, server_only=("no_wait",)) as target:
        done = target.stop(to, Patience(timeout, wait=not no_wait), savepoint=wanted, drain=drain)
    details = print_outcome(done, output)
    if details is not None:
        # A job without a process has no last micro-batch.
        batch = f" after micro-batch {details['batch']}" if "batch" in details else ""
        stderr.print(f"The job has stopped{batch}.")
        if wanted:
            print(details["savepoint"])
