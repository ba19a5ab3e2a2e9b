"""The command line of metrics and events: `penstock metrics` and `penstock events`. Neither needs Spark."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.job_target import JobEvent
from penstock.cli.metrics_tables import show_metrics
from penstock.cli.output import Output, OutputOption, escape, print_json, stdout
from penstock.cli.server_job import show_server_events
from penstock.cli.target import (
    OptionalJobArgument,
    Servers,
    asks_server,
)
from penstock.errors import CheckpointError
from penstock.metrics.rates import WINDOW_S

__all__ = ["events", "metrics"]


class MetricsOutput(StrEnum):
    """How metrics are printed."""

    text = "text"
    json = "json"
    prometheus = "prometheus"


@asks_server()
def metrics(
    servers: Servers,
    job: OptionalJobArgument = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Update with each micro-batch, until Ctrl-C."),
    ] = False,
    window: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How many seconds the rates cover.")
    ] = WINDOW_S,
    output: Annotated[
        MetricsOutput,
        typer.Option("-o", "--output", help="Print tables, one JSON line, or Prometheus' text format."),
    ] = MetricsOutput.text,
) -> None:
    """Show the metrics of a job's newest micro-batch, and its rates over the last minute.

    With --watch and -o json, print a line as each micro-batch is committed.
    """
    if job is None:
        raise CheckpointError("Name a job of the server, or a checkpoint folder.")
    if watch and output is MetricsOutput.prometheus:
        raise CheckpointError("--watch works with tables or JSON only. Let Prometheus poll the job instead.")
    with servers.job(job) as target:
        if output is MetricsOutput.prometheus:
            sys.stdout.write(target.exposition())
        elif output is MetricsOutput.json:
            for content in target.metrics_content(window, watch=watch):
                print_json(content)
        else:
            show_metrics(target.title, lambda: target.metrics(window), watch=watch)


@asks_server()
def events(
    servers: Servers,
    job: OptionalJobArgument = None,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="How many events.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing events as they happen, until Ctrl-C.")
    ] = False,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands/--no-commands",
            help="Of a checkpoint: add a line for each micro-batch with commands, from its receipts.",
        ),
    ] = True,
    output: OutputOption = Output.text,
) -> None:
    """List the events of a job, newest last: who did what, and with what result.

    Without a job, list all events of the server.
    """
    show = functools.partial(_print_event, output=output)
    if job is None:
        with servers.connect() as asked:
            show_server_events(asked, None, last, show, follow=follow)
        return
    with servers.job(job) as target:
        target.events(last, show, with_commands=commands, follow=follow)


def _print_event(event: JobEvent, output: Output) -> None:
    if output is Output.json:
        print_json(event.content)
        return
    parts = [*event.columns, *([" ".join(_pairs("", event.details))] if event.details else [])]
    stdout.print(escape("  ".join(parts)), soft_wrap=True)


def _pairs(prefix: str, found: dict[str, Any]) -> Iterable[str]:
    """Yield nested values as texts, with names like paths."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _pairs(f"{prefix}{name}.", value)
        else:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield f"{prefix}{name}={msgspec.json.encode(text).decode() if ' ' in text else text}"
