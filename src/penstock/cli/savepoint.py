"""The command line of savepoints: `penstock savepoint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.bindings.secrets import redacted
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stderr, stdout
from penstock.cli.server_state import id_in_path
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

if TYPE_CHECKING:
    from penstock.snapshots.manifest import Manifest

from penstock.cli.snapshots import NO_PLACES, new_savepoint, note_event, print_snapshot, take_snapshot

__all__ = ["savepoint"]


def savepoint(
    context: typer.Context,
    job: JobArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="Where to put it. Default: the folder CHECKPOINT.savepoints, or the server's."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the savepoints there instead.")] = False,
    dispose: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Delete a savepoint instead, by its id or its place."),
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Take a savepoint of a job, which may be running; or list those that there are, or delete one.

    A savepoint has the states, where the streams go on, and what the sources keep. It is the user's: nothing else
    deletes it.
    """
    with errors_as_sentences():
        if is_checkpoint(job):
            refuse_options(context, ("no_wait", "timeout"), "goes with a job of a server.")
            _savepoint_of_checkpoint(checkpoint_of(job), to, dispose, output, show=show)
            return
        refuse_options(context, ("to",), NO_PLACES)
        with Servers(server, home, ca).job(job) as (asked, job_id):
            if dispose is not None:
                asked.change("DELETE", f"/v1/savepoints/{id_in_path(dispose)}")
                stderr.print(f"Deleted {escaped(dispose)}.")
                return
            if show:
                from penstock.client.jobs import savepoints_of

                _tell_places(savepoints_of(asked, job_id), output)
                return
            operation = asked.change("POST", f"/v1/jobs/{job_id}/savepoints")
            result = asked_for(asked, operation, wait=not no_wait, timeout_s=timeout, output=output)
            if result is not None and output is Output.text:
                print(result["id"])


def _savepoint_of_checkpoint(
    checkpoint: Path, to: str | None, dispose: str | None, output: Output, *, show: bool
) -> None:
    from penstock.savepoints import savepoints as found_savepoints

    if show:
        root = to or str(found_savepoints.savepoints_folder(checkpoint))
        _tell_savepoints(list(found_savepoints.savepoints(root)), output)
    elif dispose is not None:
        place = found_savepoints.place_of(dispose, checkpoint)
        count = found_savepoints.dispose(place)
        note_event(checkpoint, "savepoint-deleted", {"uri": redacted(place)})
        stderr.print(f"Deleted {escaped(place)}, {count} files.")
    else:
        name, uri = new_savepoint(checkpoint, to)
        manifest, seconds = take_snapshot(checkpoint, "savepoint", uri, "arrow", name=name)
        print_snapshot(manifest, uri, seconds, output)


def _tell_savepoints(found: list[tuple[str, Manifest]], output: Output) -> None:
    told = [
        {"id": m.id, "job": m.job, "batch": m.batch, "created_at": m.created_at, "uri": place}
        for place, m in found
    ]
    _tell_places(told, output)


def _tell_places(found: list[dict[str, Any]], output: Output) -> None:
    if output is Output.json:
        print_json(found)
        return
    table = Table()
    table.add_column("id", no_wrap=True, overflow="fold")
    for name in ("job", "micro-batch", "taken at", "place"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(
            one["id"], escaped(one["job"]), str(one["batch"]), one["created_at"] or "", escaped(one["uri"])
        )
    stdout.print(table)
