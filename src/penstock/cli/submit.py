"""The command line of jobs for a server: `penstock submit`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, escape, stderr
from penstock.cli.run_options import (
    BATCH_INTERVAL,
    CHECKPOINT_INTERVAL,
    AllowNonRestoredStateOption,
    KeepPositionsOption,
    NewOutputsFromOption,
    ReplanOption,
)
from penstock.cli.server_job import await_outcome
from penstock.cli.target import (
    Servers,
    asks_server,
    complete_definitions,
    complete_savepoints,
)
from penstock.errors import JobDefinitionError

if TYPE_CHECKING:
    from penstock.client.http import Server

__all__ = ["submit"]


class Scaling(StrEnum):
    """The use of the scaling policy of a definition."""

    off = "off"
    dry_run = "dry-run"


@asks_server()
def submit(
    servers: Servers,
    definition: Annotated[
        str,
        typer.Argument(
            metavar="DEFINITION", help="A definition of the server.", autocompletion=complete_definitions
        ),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The job's name. Default: the definition's.")
    ] = None,
    restart: Annotated[
        str | None, typer.Option(metavar="STRATEGY", help="When to start the job again after a failure.")
    ] = None,
    scaling: Annotated[
        Scaling | None, typer.Option(help="Ignore the scaling policy, or only log what it decides.")
    ] = None,
    continues: Annotated[
        str | None, typer.Option(metavar="JOB", help="Go on from the checkpoint of a job that has ended.")
    ] = None,
    from_savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Begin with a savepoint of the server.", autocompletion=complete_savepoints
        ),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tasks that share each keyed step. Default: the definition's."),
    ] = None,
    batch_interval: Annotated[int | None, BATCH_INTERVAL] = None,
    checkpoint_interval: Annotated[str | None, CHECKPOINT_INTERVAL] = None,
    keep_positions: KeepPositionsOption = None,
    allow_non_restored_state: AllowNonRestoredStateOption = False,
    new_outputs_from: NewOutputsFromOption = None,
    replan: ReplanOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Let a server run one of its definitions, and print the job's id at once."""
    with servers.connect() as asked:
        changes = {
            "name": name,
            "parallelism": parallelism,
            "batch_interval": None if batch_interval is None else f"{batch_interval}ms",
            "checkpoint_interval": checkpoint_interval,
            "restart": restart,
            "scaling": None if scaling is None else scaling.value,
            "keep_positions": keep_positions,
            "allow_non_restored_state": allow_non_restored_state or None,
            "new_outputs_from": new_outputs_from,
            "replan": replan,
            "from_savepoint": from_savepoint,
        }
        operation = _submit(asked, definition, continues, changes)
        if print_outcome(await_outcome(asked, operation, Patience()), output) is not None:
            print(operation["job"], flush=True)
            stderr.print(f"Submitted. See penstock info {escape(operation['job'])}.", soft_wrap=True)


def _submit(
    server: Server, definition: str, continues: str | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Submit a definition with changes of its settings, where they are not None; return the operation."""
    from penstock.client.jobs import find_job

    known = {one["id"] for one in server.get("/v1/definitions")["items"]}
    if definition not in known and (Path(definition).exists() or "/" in definition):
        raise JobDefinitionError(
            f"{definition} is a file. A server takes no code: it runs definitions from its own folders, which are: "
            f"{', '.join(sorted(known)) or 'none'}. To run the file here, use penstock run."
        )
    if continues is not None:
        changes = {**changes, "continues": find_job(server, continues)}
    given = {name: value for name, value in changes.items() if value is not None}
    operation: dict[str, Any] = server.change("POST", "/v1/jobs", {"definition": definition, **given})
    return operation
