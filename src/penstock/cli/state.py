"""The command line of state: `penstock state` and its commands."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escape, print_json, stderr, stdout
from penstock.cli.target import (
    JobArgument,
    Servers,
    TimeoutOption,
    asks_server,
)

if TYPE_CHECKING:
    from penstock.savepoints.state_pages import StoredKey

__all__ = ["DumpFormat", "diff", "dump", "get", "ls", "plan", "state_app", "verify"]

state_app = typer.Typer(
    name="state",
    help="Show, dump, compare and check the state of jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class DumpFormat(StrEnum):
    """The formats of dumps."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


@state_app.command()
@asks_server()
def dump(
    servers: Servers,
    job: JobArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="A folder, s3://BUCKET/PREFIX or hdfs://HOST:PORT/PATH without a snapshot; for a job of a server, a "
            "new folder here.",
        ),
    ],
    form: Annotated[DumpFormat, typer.Option("--format", help="The format of the tables.")] = DumpFormat.csv,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="The state after this micro-batch. Default: the newest one."),
    ] = None,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Dump the state of a job, which may be running, after a committed micro-batch.

    The same micro-batch gives the same bytes. The manifest is written last; a dump without one is incomplete.
    """
    with servers.job(job) as target:
        done = target.dump(to, form.value, batch, Patience(timeout))
    details = print_outcome(done, output)
    if details is not None:
        print(details["uri"])


@state_app.command()
@asks_server()
def ls(
    servers: Servers,
    job: JobArgument,
    output: OutputOption = Output.text,
) -> None:
    """List the steps of a job with their states and number of keys."""
    with servers.job(job) as target:
        found = target.list_states()
    if output is Output.json:
        print_json(found)
        return
    table = Table("step", "keys", "state", "kind", "type")
    for step in found:
        for number, state in enumerate(step["states"]):
            first = (escape(step["step"]), f"{step['keys']:,}") if number == 0 else ("", "")
            table.add_row(*first, escape(state["name"]), state["kind"], escape(state["type"]))
    stdout.print(table)


@state_app.command()
@asks_server()
def get(
    servers: Servers,
    job: JobArgument,
    step: Annotated[str, typer.Option(metavar="STEP", help="The step.")],
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="The key; as JSON if it has several fields or looks like another type."
        ),
    ],
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="The state after this micro-batch. Default: the newest one."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what a step holds for one key, after a committed micro-batch. Exit code 1 when it holds nothing."""
    with servers.job(job) as target:
        stored = target.find_key(step, key, batch)
    found = None if stored is None else _format_values(stored)
    if output is Output.json:
        print_json(found)
    elif found is None:
        stderr.print(f"The step {escape(step)} holds nothing for the key {escape(key)}.")
    else:
        for name, value in found.items():
            stdout.print(f"{escape(name)}: {escape(msgspec.json.encode(value).decode())}", soft_wrap=True)
    if found is None:
        raise typer.Exit(1)


def _format_values(stored: StoredKey) -> dict[str, Any]:
    """Return the values by state, with timers and open windows under names that no state has."""
    inner = {"@timers": stored.timers, "@windows": stored.windows}
    return {**(stored.values or {}), **{name: value for name, value in inner.items() if value is not None}}


@state_app.command()
@errors_as_sentences()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A dump or savepoint.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also compare what steps keep about commands.")
    ] = False,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="How many differing rows to show.")] = 10,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Also compare the numbers in each column of what differs.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the distributions of these numbers, as SVG."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Compare two snapshots: keys that were added, removed and changed. Exit code 1 when they differ."""
    from penstock.cli.shown_statistics import draw_statistics, print_statistics
    from penstock.snapshots.column_statistics import statistics_of
    from penstock.snapshots.differences import diff as compare

    found = compare(before, after, samples=samples)
    if not everything:
        found = dataclasses.replace(
            found,
            tables=tuple(t for t in found.tables if "/__" not in t.name),
            tables_added=tuple(name for name in found.tables_added if "/__" not in name),
            tables_removed=tuple(name for name in found.tables_removed if "/__" not in name),
        )
    differing = [table.name for table in found.tables if not table.same]
    numbers = list(statistics_of(before, after, differing)) if statistics or picture else []
    if picture is not None:
        draw_statistics(numbers, picture)
    if output is Output.json:
        more = {"statistics": msgspec.to_builtins(numbers)} if statistics else {}
        print_json({"same": found.same, **msgspec.to_builtins(found), **more})
    elif found.same:
        stdout.print("Both have the same content.")
    else:
        _print_differences(found)
        for one in numbers if statistics else ():
            print_statistics(one)
    if not found.same:
        raise typer.Exit(1)


@state_app.command()
@errors_as_sentences()
def verify(
    uri: Annotated[str, typer.Argument(metavar="URI", help="A dump or savepoint.")],
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept an edited dump: check every row, and write a new manifest."),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Check every file of a snapshot against its manifest. Exit code 1 when anything is wrong."""
    from penstock.snapshots.snapshot_reader import accept as accept_dump
    from penstock.snapshots.snapshot_reader import verify as verify_snapshot

    if accept:
        accept_dump(uri)
    found = verify_snapshot(uri)
    defects = [{"path": d.path, "problem": d.problem} for d in found.defects]
    if output is Output.json:
        print_json({"sound": found.sound, "rows": found.rows, "defects": defects})
    elif found.sound:
        stdout.print(f"{escape(uri)} is sound: {found.files:,} files, {found.rows:,} rows.", soft_wrap=True)
    else:
        for defect in found.defects:
            stdout.print(f"{escape(defect.path)}: {escape(defect.problem)}", soft_wrap=True)
    if not found.sound:
        raise typer.Exit(1)


@state_app.command()
@errors_as_sentences()
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
    """Show what would happen to each state if a job began from a snapshot. Reads no data.

    Exit code 1 when the job would refuse the snapshot.
    """
    from penstock.jobs.job_loader import load_job
    from penstock.jobs.restore import planned_changes

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
                    escape(change.step), escape(change.state), change.outcome, escape(change.detail)
                )
        stdout.print(table)
    if any(change.outcome == "refused" for change in changes):
        raise typer.Exit(1)


def _print_differences(found: Any) -> None:
    for name in found.tables_added:
        stdout.print(f"{escape(name)}: only in the second", soft_wrap=True)
    for name in found.tables_removed:
        stdout.print(f"{escape(name)}: only in the first", soft_wrap=True)
    for table in found.tables:
        if table.same:
            continue
        stdout.print(
            f"{escape(table.name)}: {table.added:,} added, {table.removed:,} removed, {table.changed:,} changed, "
            f"{table.unchanged:,} the same",
            soft_wrap=True,
        )
        for change in table.schema_changes:
            stdout.print(f"  {escape(change)}", soft_wrap=True)
        for sample in table.samples:
            stdout.print(f"  {escape(msgspec.json.encode(sample).decode())}", soft_wrap=True)
