"""The command line of rescaling: `penstock rescale`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, stdout
from penstock.cli.target import (
    JobArgument,
    NoWaitOption,
    Servers,
    TimeoutOption,
    asks_server,
)

__all__ = ["rescale"]


@asks_server()
def rescale(
    servers: Servers,
    context: typer.Context,
    job: JobArgument,
    parallelism: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tasks that share each keyed step from now on.")
    ],
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Change the number of tasks that share the state of a job.

    A running job pauses for it between two micro-batches. For a stopped job this changes the checkpoint. Prints how
    long the job stood still.
    """
    with servers.job(job, context, server_only=("no_wait",)) as target:
        done = target.rescale(parallelism, Patience(timeout, wait=not no_wait))
    details = print_outcome(done, output)
    if details is not None:
        before, after = details["before"], details["after"]
        if after == before:
            text = f"The parallelism is {after} already; nothing changed."
        else:
            text = (
                f"The parallelism was {before} and is {after} since micro-batch {details['batch']}; the job "
                f"stood still for {details['seconds']:.1f} s."
            )
        stdout.print(text, soft_wrap=True)
