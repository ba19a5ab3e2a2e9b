"""The command line of rescaling: `penstock rescale`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.cli.output import Output, OutputOption, errors_as_sentences, print_json, stdout
from penstock.cli.snapshots import note_event, opened_checkpoint
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

__all__ = ["rescale"]


def rescale(
    context: typer.Context,
    job: JobArgument,
    parallelism: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tasks that share each keyed step from now on.")
    ],
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Give the state of a job to another number of tasks.

    A running job stands still for it between two micro-batches, and goes on; of one that is stopped the checkpoint is
    changed. Prints how long the job stood still.
    """
    with errors_as_sentences():
        if is_checkpoint(job):
            refuse_options(context, ("no_wait",), "goes with a job of a server.")
            details = _rescaled(checkpoint_of(job), parallelism, timeout)
            if output is Output.json:
                print_json(details)
        else:
            with Servers(server, home, ca).job(job) as (asked, job_id):
                operation = asked.change("POST", f"/v1/jobs/{job_id}/rescale", {"parallelism": parallelism})
                result = asked_for(asked, operation, wait=not no_wait, timeout_s=timeout, output=output)
                if result is None:
                    return
                details = result
        if output is Output.text:
            before, after = details["before"], details["after"]
            if after == before:
                told = f"The parallelism was {after} already; nothing was changed."
            else:
                told = (
                    f"The parallelism was {before}, and is {after} since micro-batch {details['batch']}; the job "
                    f"stood still for {details['seconds']:.1f} s."
                )
            stdout.print(told, soft_wrap=True)


def _rescaled(checkpoint: Path, parallelism: int, timeout_s: float) -> dict[str, Any]:
    from penstock.jobs.events import user_name
    from penstock.jobs.requests import ask, is_running, new_request

    opened = opened_checkpoint(checkpoint)
    if not is_running(opened.folder):
        return _rescaled_offline(opened, parallelism)
    return ask(opened.folder, new_request("rescale", parallelism=parallelism, by=user_name()), timeout_s)


def _rescaled_offline(checkpoint: Checkpoint, parallelism: int) -> dict[str, Any]:
    import threading

    from penstock.checkpoints.ownership import Ownership, locked
    from penstock.savepoints.rescaling import finish_rescaling
    from penstock.savepoints.rescaling import rescale as rescale_checkpoint
    from penstock.spark.reading_session import reading_session

    with locked(checkpoint.folder, threading.Event(), 0):
        finish_rescaling(checkpoint)
        before = checkpoint.stored_lineage()
        # Where locks do not reach, a run on another machine must learn that the checkpoint is not its own any more.
        Ownership.begin(checkpoint.folder)
        with reading_session(gives_way=False) as session:
            begun_s = time.monotonic()
            after = rescale_checkpoint(session, checkpoint, parallelism)
            seconds = time.monotonic() - begun_s
    details = {
        "seconds": round(seconds, 2),
        "before": 0 if before is None else before.parallelism,
        "after": after.parallelism,
        "batch": after.first_batch - 1,
    }
    note_event(checkpoint.folder, "rescaled", details)
    return details
