"""The command line of what a job does and has done: `penstock metrics` and `penstock events`. Neither needs Spark."""

from __future__ import annotations

import datetime as dt
import math
import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from penstock.cli.managed_metrics import figures_table, print_metrics, show_metrics
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stdout
from penstock.cli.target import (
    DEFAULT_HOME,
    CaOption,
    HomeOption,
    OptionalJobArgument,
    ServerOption,
    Servers,
    checkpoint_of,
    is_checkpoint,
)
from penstock.cli.texts import instant_text, shown_instant
from penstock.errors import CheckpointError
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.events import Event, NewEvents, newest_events
from penstock.jobs.figures import Figures, NewFigures, newest_figures
from penstock.jobs.measuring import measured
from penstock.jobs.rates import WINDOW_S, Rates
from penstock.jobs.requests import is_running
from penstock.sizes import bytes_text

__all__ = ["register_metrics"]

_WATCH_S: Final = 1.0


class MetricsOutput(StrEnum):
    """How metrics are printed."""

    text = "text"
    json = "json"
    prometheus = "prometheus"


def register_metrics(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(metrics)
    app.command()(events)


def metrics(
    job: OptionalJobArgument = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Go on, with each micro-batch, until Ctrl-C."),
    ] = False,
    window: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Over how many seconds rates are taken.")
    ] = WINDOW_S,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: Annotated[
        MetricsOutput,
        typer.Option("-o", "--output", help="Print tables, one JSON line, or Prometheus' text format."),
    ] = MetricsOutput.text,
) -> None:
    """Show the figures of a job's newest micro-batch, and its rates over the last minute.

    With --watch and -o json each micro-batch is a line as it is committed.
    """
    with errors_as_sentences():
        if job is None:
            raise CheckpointError("No job is named. Give a job of the server, or a checkpoint folder.")
        if not is_checkpoint(job):
            if output is MetricsOutput.prometheus:
                raise CheckpointError(
                    "-o prometheus goes with a checkpoint. A server has the metrics of all its jobs at /metrics."
                )
            with Servers(server, home, ca).job(job) as (asked, job_id):
                show = print_metrics if output is MetricsOutput.json else show_metrics
                show(asked, job_id, math.ceil(window), watch=watch)
            return
        folder = _opened(checkpoint_of(job))
        if output is MetricsOutput.prometheus:
            if watch:
                raise CheckpointError(
                    "--watch goes with tables or JSON. Let Prometheus ask again for the rest."
                )
            _print_exposition(folder)
        elif output is MetricsOutput.json:
            print_json(_as_json(folder, window))
            if watch:
                _watch_lines(folder)
        elif watch:
            _watch_tables(folder, window)
        else:
            stdout.print(_tables(folder, window))


def events(
    job: OptionalJobArgument = None,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="How many, the newest.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on, with each event as it comes, until Ctrl-C.")
    ] = False,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands/--no-commands",
            help="Of a checkpoint: with a line for each micro-batch with commands, from its receipts.",
        ),
    ] = True,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """List who did what to a job, and what became of it, newest last: the audit log of a checkpoint, or of a server.

    Without a job all events of the server.
    """
    with errors_as_sentences():
        if job is None or not is_checkpoint(job):
            _server_events(Servers(server, home, ca), job, last, output, follow=follow)
            return
        folder = _opened(checkpoint_of(job))
        # Made first, so that no event is missed between the two.
        new = NewEvents(folder, with_commands=commands) if follow else None
        for event in newest_events(folder, last, with_commands=commands):
            _print_event(event, output)
        if new is not None:
            new.follow(lambda event: _print_event(event, output))


def _opened(checkpoint: Path) -> Path:
    found = Checkpoint(checkpoint.expanduser().absolute())
    if not found.lineage_file.exists():
        raise CheckpointError(
            f"{found.folder} is no checkpoint of a job that was started. Name the folder that penstock run "
            "--checkpoint was given."
        )
    return found.folder


# -- metrics --


def _print_exposition(folder: Path) -> None:
    from penstock.jobs.exposition import JobFigures, exposition

    newest = newest_figures(folder)
    if newest is not None:
        sys.stdout.write(exposition([JobFigures(newest, is_running(folder))]).decode())


def _as_json(folder: Path, window_s: float) -> dict[str, Any]:
    found = measured(folder, window_s, is_running=is_running(folder))
    return {"running": found.is_running, "rates": found.rates, "figures": found.newest}


def _watch_lines(folder: Path) -> None:
    new = NewFigures(folder)
    while True:
        for figures in new.read():
            print_json(figures)
        time.sleep(_WATCH_S / 5)


def _watch_tables(folder: Path, window_s: float) -> None:
    if not stdout.is_terminal:
        shown = None
        while True:
            newest = newest_figures(folder)
            if newest != shown:
                stdout.print(_tables(folder, window_s))
                shown = newest
            time.sleep(_WATCH_S)
    with Live(_tables(folder, window_s), console=stdout, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(_tables(folder, window_s), refresh=True)


def _tables(folder: Path, window_s: float) -> RenderableType:
    found = measured(folder, window_s, is_running=is_running(folder))
    if found.newest is None:
        return f"The job in {folder} {'runs, and' if found.is_running else 'does not run, and'} has no figures yet."
    return Group(*_parts(found.newest, found.is_running, found.rates))


def _parts(newest: Figures, running: bool, found: Rates) -> Iterator[RenderableType]:
    """What there is to show, as tables."""
    yield _overview(newest, running, found)
    streams = figures_table("stream", "records", "per second", "waiting", "for")
    for name in newest.totals.records_in.keys() | newest.lag.keys():
        lag = newest.lag.get(name)
        amounts = {} if lag is None else {"records": lag.records, "files": lag.files, "bytes": lag.bytes}
        waiting = " ".join(
            bytes_text(amount) if unit == "bytes" else f"{amount:,} {unit}"
            for unit, amount in amounts.items()
            if amount
        )
        waits = "" if lag is None or not lag.seconds else f"{lag.seconds:,.1f} s"
        count = newest.totals.records_in.get(name)
        shown = ("", "") if count is None else (f"{count:,}", f"{found.records_in.get(name, 0):,.1f}")
        streams.add_row(escaped(name), *shown, waiting or "-", waits)
    yield streams
    sinks = figures_table("sink", "records", "per second")
    for name, count in newest.totals.records_out.items():
        sinks.add_row(escaped(name), f"{count:,}", f"{found.records_out.get(name, 0):,.1f}")
    yield sinks
    if newest.steps:
        yield _steps(newest, found)


def _overview(newest: Figures, running: bool, found: Rates) -> RenderableType:
    ago_s = max(0.0, (dt.datetime.now(dt.UTC) - newest.ended).total_seconds())
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in newest.phases.items() if seconds >= 0.005)
    commands = ", ".join(f"{count:,} {outcome}" for outcome, count in newest.totals.commands.items() if count)
    lines = {
        "job": f"{newest.job} ({newest.job_id}), {'running' if running else 'not running'}",
        "newest micro-batch": f"{newest.batch}, ended {ago_s:,.1f} s ago, took {newest.duration_s:.2f} s: {phases}",
        "at work": f"{found.utilisation:.0%} of the last {found.seconds:.0f} s, in {found.batches:.2f} micro-batches a "
        f"second of {found.mean_busy_s:.2f} s",
        "tasks": f"{newest.parallelism} for each step, {newest.cores} at a time",
        "dead letters": f"{newest.totals.dead_letters:,}",
        "commands": commands or "none",
    }
    use = newest.memory
    if use is not None:
        heap = f"heap {bytes_text(use.heap_used_bytes)} of {bytes_text(use.heap_max_bytes)}"
        lines["memory"] = (
            f"driver {bytes_text(use.driver_bytes)}, JVM {bytes_text(use.jvm_bytes)} ({heap}), workers "
            f"{bytes_text(use.workers_bytes)}; garbage {use.gc_seconds:.1f} s"
        )
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in lines.items():
        table.add_row(name, escaped(text))
    return Group(table, "")


def _steps(newest: Figures, found: Rates) -> Table:
    table = figures_table(
        "step", "records", "per second", "skew", "keys", "state", "held", "late", "watermark"
    )
    for name, step in newest.steps.items():
        lost = newest.totals.late.get(name, 0) + newest.totals.without_window.get(name, 0)
        table.add_row(
            escaped(name),
            f"{newest.totals.step_records.get(name, 0):,}",
            f"{found.step_records.get(name, 0):,.1f}",
            "-" if step.skew is None else f"{step.skew:.2f}",
            f"{step.keys:,}",
            bytes_text(step.state_bytes),
            bytes_text(step.held_bytes) if step.held_bytes else "-",
            f"{lost:,}" if lost else "-",
            "-" if step.watermark is None else shown_instant(step.watermark),
        )
    return table


# -- events --


def _print_event(event: Event, output: Output) -> None:
    if output is Output.json:
        print_json(event)
        return
    parts = [
        shown_instant(event.at),
        f"{event.event:<17}",
        escaped(event.by or "-"),
        escaped(event.job_id or "-"),
    ]
    if event.batch is not None:
        parts.append(f"batch {event.batch}")
    if event.details:
        parts.append(escaped(_told(event.details)))
    stdout.print("  ".join(parts), soft_wrap=True)


def _server_events(servers: Servers, job: str | None, last: int, output: Output, *, follow: bool) -> None:
    with servers.asked() as server:
        from penstock.client.jobs import find_job

        job_id = None if job is None else find_job(server, job)
        found = server.events(job=job_id)
        for event in found[len(found) - min(last, len(found)) :]:
            _print_server_event(event, output)
        if follow:
            behind = found[-1]["id"] if found else 0
            for event in server.stream("/v1/events/stream", job=job_id, after=behind):
                _print_server_event(event, output)


def _print_server_event(event: dict[str, Any], output: Output) -> None:
    if output is Output.json:
        print_json(event)
        return
    parts = [
        instant_text(event["at_ms"]),
        escaped(event["job_id"] or "-"),
        escaped(event["who"]),
        escaped(event["what"]),
    ]
    if event["detail"]:
        parts.append(escaped(_told(event["detail"])))
    stdout.print("  ".join(parts), soft_wrap=True)


def _told(details: dict[str, Any]) -> str:
    return " ".join(_pairs("", details))


def _pairs(prefix: str, found: dict[str, Any]) -> Iterable[str]:
    """Nested values, with names like paths."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _pairs(f"{prefix}{name}.", value)
        else:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield f"{prefix}{name}={msgspec.json.encode(text).decode() if ' ' in text else text}"
