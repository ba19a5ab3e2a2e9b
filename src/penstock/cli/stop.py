"""The command line of stopping: `penstock stop`, perhaps with a savepoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Output, OutputOption, errors_as_sentences, print_json, stderr
from penstock.cli.snapshots import NO_PLACES, new_savepoint, opened_checkpoint
from penstock.cli.target import (
    DEFAULT_HOME,
    CaOption,
    HomeOption,
    JobArgument,
    NoWaitOption,
    ServerOption,
    Servers,
    TimeoutOption,
    asked_for,
    checkpoint_of,
    is_checkpoint,
    refuse_options,
)
from penstock.errors import CheckpointError

__all__ = ["stop"]


def stop(
    context: typer.Context,
    job: JobArgument,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Take a savepoint when the job has stopped.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--savepoint-path",
            metavar="URI",
            help="Take one, and put it there. Default: the folder CHECKPOINT.savepoints, or the server's.",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="First process everything that is there at this moment.")
    ] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Stop a running job between two micro-batches, perhaps with a savepoint."""
    with errors_as_sentences():
        wanted = with_savepoint or to is not None
        if is_checkpoint(job):
            refuse_options(context, ("no_wait",), "goes with a job of a server.")
            details = _stopped(checkpoint_of(job), to, timeout, savepoint=wanted, drain=drain)
            if output is Output.json:
                print_json(details)
        else:
            refuse_options(context, ("to",), NO_PLACES)
            with Servers(server, home, ca).job(job) as (asked, job_id):
                change = {"desired": "FINISHED", "savepoint": wanted, "drain": drain}
                operation = asked.change("PATCH", f"/v1/jobs/{job_id}", change)
                result = asked_for(asked, operation, wait=not no_wait, timeout_s=timeout, output=output)
                if result is None:
                    return
                details = result
        if output is Output.text:
            # A job that had no process at that moment has nothing to tell.
            batch = f" after micro-batch {details['batch']}" if "batch" in details else ""
            stderr.print(f"The job has stopped{batch}.")
            if wanted:
                print(details["savepoint"])


def _stopped(
    checkpoint: Path, to: str | None, timeout_s: float, *, savepoint: bool, drain: bool
) -> dict[str, Any]:
    """Ask the job that runs on a checkpoint to stop; gives its answer."""
    from penstock.jobs.events import user_name
    from penstock.jobs.requests import ask, new_request

    _check_running(checkpoint)
    name, uri = new_savepoint(checkpoint, to) if savepoint else (None, None)
    request = new_request("stop", savepoint=uri, savepoint_id=name, drain=drain, by=user_name())
    return ask(checkpoint, request, timeout_s)


def _check_running(checkpoint: Path) -> None:
    from penstock.jobs.requests import is_running

    opened = opened_checkpoint(checkpoint)
    if not is_running(opened.folder):
        raise CheckpointError(
            f"No job runs on {opened.folder}. Its state is in the checkpoint; take a savepoint with penstock savepoint."
        )
