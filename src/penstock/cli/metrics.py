"""The command line of what a job does and has done: `penstock metrics` and `penstock events`. Neither needs Spark."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.cli.metrics_tables import show_metrics
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stdout
from penstock.cli.server_metrics import print_managed, show_managed
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
from penstock.cli.times import instant_text, shown_instant
from penstock.errors import CheckpointError
from penstock.jobs.events import Event, NewEvents, newest_events
from penstock.jobs.requests import is_running
from penstock.metrics.batch_metrics import NewFigures, newest_figures
from penstock.metrics.job_metrics import measured
from penstock.metrics.rates import WINDOW_S
from penstock.server.service.metrics_resources import Metrics, metrics_of

__all__ = ["register_metrics"]

_LINES_S: Final = 0.2


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
                show = print_managed if output is MetricsOutput.json else show_managed
                show(asked, job_id, math.ceil(window), watch=watch)
            return
        opened = _opened(checkpoint_of(job))
        folder = opened.folder
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
        else:
            show_metrics(opened.known_lineage().job, lambda: _look(folder, window), watch=watch)


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
        folder = _opened(checkpoint_of(job)).folder
        # Made first, so that no event is missed between the two.
        new = NewEvents(folder, with_commands=commands) if follow else None
        for event in newest_events(folder, last, with_commands=commands):
            _print_event(event, output)
        if new is not None:
            new.follow(lambda event: _print_event(event, output))


def _opened(checkpoint: Path) -> Checkpoint:
    found = Checkpoint(checkpoint)
    found.check_begun()
    return found


# -- metrics --


def _print_exposition(folder: Path) -> None:
    from penstock.metrics.exposition import JobFigures, exposition

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
        time.sleep(_LINES_S)


def _look(folder: Path, window_s: float) -> Metrics:
    found = measured(folder, window_s, is_running=is_running(folder))
    return metrics_of(found, [] if found.newest is None else [found.newest])


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
