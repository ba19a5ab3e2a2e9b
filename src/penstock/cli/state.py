"""The command line of state: `penstock state`, `savepoint`, `stop` and `rescale`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from penstock.bindings import redacted
from penstock.cli.managed_state import fetch_dump, id_in_path, value_on_server
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stderr, stdout
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
from penstock.jobs.checkpoint import Checkpoint

if TYPE_CHECKING:
    from penstock.jobs.events import EventKind
    from penstock.snapshots.manifest import Manifest

__all__ = ["register_state", "state_app"]

state_app = typer.Typer(
    name="state",
    help="See, dump, compare and check the state of jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


_NO_PLACES: Final = (
    "names a place, which no client of a server may do; the server has a place for savepoints. Leave it out."
)


class DumpFormat(StrEnum):
    """The formats of dumps."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


@state_app.command()
def dump(
    job: JobArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="A folder, or s3://bucket/prefix, that has no snapshot; of a server's job a new folder here.",
        ),
    ],
    form: Annotated[DumpFormat, typer.Option("--format", help="The format of the tables.")] = DumpFormat.csv,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="The state after this micro-batch. Default: the newest one."),
    ] = None,
    timeout: TimeoutOption = 600.0,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Dump the state of a job, which may be running, after a micro-batch that is committed.

    The same micro-batch gives the same bytes. The dump exists when its manifest does, which is written last.
    """
    with errors_as_sentences():
        if is_checkpoint(job):
            manifest, seconds = _captured(checkpoint_of(job), "dump", to, form.value, batch=batch)
            _tell_snapshot(manifest, to, seconds, output)
            return
        with Servers(server, home, ca).job(job) as (asked, job_id):
            wanted = {"format": form.value} | ({} if batch is None else {"batch": batch})
            dump_id = fetch_dump(asked, job_id, wanted, Path(to), timeout)
        if output is Output.json:
            print_json({"job": job_id, "id": dump_id, "uri": to})
        else:
            print(to)


@state_app.command()
def ls(
    job: JobArgument,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """List the steps of a job with their states and how many keys they hold."""
    with errors_as_sentences():
        if is_checkpoint(job):
            from penstock.jobs.described_state import read_described
            from penstock.jobs.state_listing import listed

            checkpoint = checkpoint_of(job)
            found = listed(checkpoint, read_described(checkpoint))
        else:
            with Servers(server, home, ca).job(job) as (asked, job_id):
                found = asked.get(f"/v1/jobs/{job_id}/state")
        if output is Output.json:
            print_json(found)
            return
        table = Table("step", "keys", "state", "kind", "type")
        for step in found:
            for number, state in enumerate(step["states"]):
                first = (escaped(step["step"]), f"{step['keys']:,}") if number == 0 else ("", "")
                table.add_row(*first, escaped(state["name"]), state["kind"], escaped(state["type"]))
        stdout.print(table)


@state_app.command()
def get(
    job: JobArgument,
    step: Annotated[str, typer.Option(metavar="STEP", help="The step.")],
    key: Annotated[
        str, typer.Option(metavar="KEY", help="The key; one of several fields, or odd text, as JSON.")
    ],
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="The state after this micro-batch. Default: the newest one."),
    ] = None,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what a step holds for one key, after a committed micro-batch. Exit code 1 when it holds nothing."""
    with errors_as_sentences():
        if is_checkpoint(job):
            from penstock.jobs.reading_session import reading_session
            from penstock.jobs.state_listing import asked_key, value_of_key

            # What cannot be is told before Spark starts, which takes seconds.
            wanted = asked_key(Checkpoint(checkpoint_of(job)), step, key, batch)
            with reading_session() as session:
                found = value_of_key(session, wanted)
        else:
            with Servers(server, home, ca).job(job) as (asked, job_id):
                found = value_on_server(asked, job_id, step, key, batch)
        if output is Output.json:
            print_json(found)
        elif found is None:
            stderr.print(f"The step {escaped(step)} holds nothing for the key {escaped(key)}.")
        else:
            for name, value in found.items():
                stdout.print(
                    f"{escaped(name)}: {escaped(msgspec.json.encode(value).decode())}", soft_wrap=True
                )
    if found is None:
        raise typer.Exit(1)


@state_app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A dump or savepoint.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Compare what steps keep about commands as well.")
    ] = False,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="How many differing rows to show.")] = 10,
    output: OutputOption = Output.text,
) -> None:
    """Compare two snapshots: keys that were added, removed and changed. Exit code 1 when they differ."""
    with errors_as_sentences():
        from penstock.snapshots.differences import diff as compare

        found = compare(before, after, samples=samples)
        if not everything:
            found = dataclasses.replace(
                found,
                tables=tuple(t for t in found.tables if "/__" not in t.name),
                tables_added=tuple(name for name in found.tables_added if "/__" not in name),
                tables_removed=tuple(name for name in found.tables_removed if "/__" not in name),
            )
        if output is Output.json:
            print_json({"same": found.same, **msgspec.to_builtins(found)})
        elif found.same:
            stdout.print("The two have the same content.")
        else:
            _tell_differences(found)
    if not found.same:
        raise typer.Exit(1)


@state_app.command()
def verify(
    uri: Annotated[str, typer.Argument(metavar="URI", help="A dump or savepoint.")],
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Take a dump as it is now: check every row, and write its manifest anew."
        ),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Check every file of a snapshot against its manifest. Exit code 1 when anything is wrong."""
    with errors_as_sentences():
        from penstock.snapshots.reading import accept as accept_dump
        from penstock.snapshots.reading import verify as verify_snapshot

        if accept:
            accept_dump(uri)
        found = verify_snapshot(uri)
        defects = [{"path": d.path, "problem": d.problem} for d in found.defects]
        if output is Output.json:
            print_json({"sound": found.sound, "rows": found.rows, "defects": defects})
        elif found.sound:
            stdout.print(
                f"{escaped(uri)} is sound: {found.files:,} files, {found.rows:,} rows.", soft_wrap=True
            )
        else:
            for defect in found.defects:
                stdout.print(f"{escaped(defect.path)}: {escaped(defect.problem)}", soft_wrap=True)
    if not found.sound:
        raise typer.Exit(1)


@state_app.command()
def plan(
    job_file: Annotated[
        str, typer.Argument(metavar="FILE[:ATTR]", help="The job file, and the job's name in it.")
    ],
    source: Annotated[
        str, typer.Option("--from", metavar="URI", help="A savepoint, a dump, or a checkpoint.")
    ],
    allow_non_restored_state: Annotated[
        bool, typer.Option("--allow-non-restored-state", help="As for penstock run.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Say what would become of each state if a job began from it. Reads no data.

    Exit code 1 when it would be refused.
    """
    with errors_as_sentences():
        from penstock.jobs.beginning import planned_changes
        from penstock.jobs.loading import load_job

        changes = planned_changes(
            load_job(job_file).job, source, allow_non_restored_state=allow_non_restored_state
        )
        if output is Output.json:
            print_json(changes)
        else:
            table = Table("step", "state", "outcome", "detail")
            for change in changes:
                if not change.state.startswith("__"):
                    table.add_row(
                        escaped(change.step), escaped(change.state), change.outcome, escaped(change.detail)
                    )
            stdout.print(table)
    if any(change.outcome == "refused" for change in changes):
        raise typer.Exit(1)


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
        refuse_options(context, ("to",), _NO_PLACES)
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
    from penstock.jobs import savepoints as found_savepoints

    if show:
        root = to or str(found_savepoints.savepoints_folder(checkpoint))
        _tell_savepoints(list(found_savepoints.savepoints(root)), output)
    elif dispose is not None:
        place = found_savepoints.place_of(dispose, checkpoint)
        count = found_savepoints.dispose(place)
        _record(checkpoint, "savepoint-deleted", {"uri": redacted(place)})
        stderr.print(f"Deleted {escaped(place)}, {count} files.")
    else:
        name, uri = _new_savepoint(checkpoint, to)
        manifest, seconds = _captured(checkpoint, "savepoint", uri, "arrow", name=name)
        _tell_snapshot(manifest, uri, seconds, output)


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
            refuse_options(context, ("to",), _NO_PLACES)
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
    name, uri = _new_savepoint(checkpoint, to) if savepoint else (None, None)
    request = new_request("stop", savepoint=uri, savepoint_id=name, drain=drain, by=user_name())
    return ask(checkpoint, request, timeout_s)


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

    opened = _opened(checkpoint)
    if not is_running(opened.folder):
        return _rescaled_offline(opened, parallelism)
    return ask(opened.folder, new_request("rescale", parallelism=parallelism, by=user_name()), timeout_s)


def register_state(app: typer.Typer) -> None:
    """Add the commands of state to the command line."""
    app.add_typer(state_app, name="state")
    for command in (savepoint, stop, rescale):
        app.command()(command)


def _rescaled_offline(checkpoint: Checkpoint, parallelism: int) -> dict[str, Any]:
    import threading

    from penstock.jobs.ownership import Ownership, locked
    from penstock.jobs.reading_session import reading_session
    from penstock.jobs.rescaling import finish_rescaling
    from penstock.jobs.rescaling import rescale as rescale_checkpoint

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
    _record(checkpoint.folder, "rescaled", details)
    return details


def _opened(checkpoint: Path) -> Checkpoint:
    found = Checkpoint(checkpoint.expanduser().absolute())
    found.known_lineage()
    return found


def _check_running(checkpoint: Path) -> None:
    from penstock.jobs.requests import is_running

    opened = _opened(checkpoint)
    if not is_running(opened.folder):
        raise CheckpointError(
            f"No job runs on {opened.folder}. Its state is in the checkpoint; take a savepoint with penstock savepoint."
        )


def _new_savepoint(checkpoint: Path, to: str | None) -> tuple[str, str]:
    """The id of a new savepoint, and its place."""
    from penstock.jobs.savepoints import new_id, savepoints_folder

    name = new_id(dt.datetime.now(dt.UTC))
    root = to or str(savepoints_folder(checkpoint.expanduser().absolute()))
    if "://" not in root and not root.startswith("file:"):
        # The job may have another working folder.
        root = str(Path(root).expanduser().absolute())
    return name, f"{root.rstrip('/')}/{name}"


def _captured(
    checkpoint: Path, kind: Any, uri: str, form: Any, *, batch: int | None = None, name: str | None = None
) -> tuple[Manifest, float]:
    """Take a snapshot; gives it and how long that took once Spark was there."""
    from penstock.jobs.capturing import Capture, capture, check_committed
    from penstock.jobs.reading_session import reading_session

    opened = _opened(checkpoint)
    check_committed(opened, batch)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds") if kind == "savepoint" else None
    with stderr.status("Starting Spark ..."), reading_session() as session:
        begun_s = time.monotonic()
        manifest = capture(session, opened, Capture(kind, uri, form, name, batch, now))
        seconds = time.monotonic() - begun_s
    _record(opened.folder, kind, {"id": manifest.id, "uri": redacted(uri), "format": form}, manifest.batch)
    return manifest, seconds


def _record(folder: Path, kind: EventKind, details: dict[str, Any], batch: int | None = None) -> None:
    """Write down in the checkpoint of a job what was done there, by whom. What is done stays done if that fails."""
    from penstock.jobs.checkpoint import Checkpoint
    from penstock.jobs.events import Event, record_event, user_name

    try:
        lineage = Checkpoint(folder).stored_lineage()
        # Savepoints outlive their checkpoints.
        if lineage is not None:
            now, by = dt.datetime.now(dt.UTC), user_name()
            event = Event(at=now, event=kind, job=lineage.job, by=by, batch=batch, details=details)
            record_event(folder, event)
    except CheckpointError as e:
        stderr.print(f"[yellow]Note:[/] {escaped(str(e))}", soft_wrap=True)


def _tell_snapshot(manifest: Manifest, uri: str, seconds: float, output: Output) -> None:
    rows = sum(table.rows for table in manifest.tables if table.kind != "internal")
    if output is Output.json:
        told = {
            "kind": manifest.kind,
            "id": manifest.id,
            "uri": uri,
            "batch": manifest.batch,
            "rows": rows,
            "digest": manifest.digest,
            "seconds": round(seconds, 2),
            "tables": {table.name: table.rows for table in manifest.tables if table.kind != "internal"},
        }
        print_json(told)
        return
    for table in manifest.tables:
        if table.kind != "internal":
            stderr.print(f"  {escaped(table.name)}: {table.rows:,} rows", soft_wrap=True)
    stderr.print(
        f"The {manifest.kind} of micro-batch {manifest.batch} is in {escaped(uri)}: {rows:,} rows in {seconds:.1f} s.",
        soft_wrap=True,
    )
    print(manifest.id if manifest.kind == "savepoint" else uri)


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


def _tell_differences(found: Any) -> None:
    for name in found.tables_added:
        stdout.print(f"{escaped(name)}: only in the second", soft_wrap=True)
    for name in found.tables_removed:
        stdout.print(f"{escaped(name)}: only in the first", soft_wrap=True)
    for table in found.tables:
        if table.same:
            continue
        stdout.print(
            f"{escaped(table.name)}: {table.added:,} added, {table.removed:,} removed, {table.changed:,} changed, "
            f"{table.unchanged:,} the same",
            soft_wrap=True,
        )
        for change in table.schema_changes:
            stdout.print(f"  {escaped(change)}", soft_wrap=True)
        for sample in table.samples:
            stdout.print(f"  {escaped(msgspec.json.encode(sample).decode())}", soft_wrap=True)
