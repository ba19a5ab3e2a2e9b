"""The metrics of a job as tables, wherever they come from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from penstock.base.durations import seconds_text
from penstock.base.sizes import format_bytes, format_count
from penstock.cli.output import escape, stdout
from penstock.cli.times import format_milliseconds
from penstock.server.service.metrics_resources import (
    Batch,
    JobLag,
    Metrics,
    SinkLatency,
    SinkMetrics,
    StepMetrics,
    StreamMetrics,
)

__all__ = ["show_metrics"]

_WATCH_S: Final = 1.0


def show_metrics(job: str, look: Callable[[], Metrics], *, watch: bool) -> None:
    """Show the metrics of a job; with `watch`, refresh each second until Ctrl-C.

    Without a terminal, print the tables again after each new micro-batch.
    """
    found = look()
    if not watch:
        stdout.print(_tables(job, found))
    elif stdout.is_terminal:
        with Live(_tables(job, found), console=stdout, auto_refresh=False) as live:
            while True:
                time.sleep(_WATCH_S)
                live.update(_tables(job, look()), refresh=True)
    else:
        stdout.print(_tables(job, found))
        while True:
            time.sleep(_WATCH_S)
            before, found = found, look()
            if found.batches != before.batches:
                stdout.print(_tables(job, found))


def _tables(job: str, found: Metrics) -> RenderableType:
    if not found.batches:
        return f"The job {escape(job)} {'runs, and' if found.running else 'does not run, and'} has no metrics yet."
    return Group(*_parts(job, found, found.batches[-1]))


def _parts(job: str, found: Metrics, newest: Batch) -> Iterator[RenderableType]:
    yield _overview(job, found, newest)
    streams = _table("stream", "records", "per second", "waiting", "for")
    for stream in found.streams:
        streams.add_row(*_format_counts(stream), *_format_lag(stream.lag))
    yield streams
    sinks = _table("sink", "records", "per second", "latency p50", "p95", "p99", "longest")
    for sink in found.sinks:
        sinks.add_row(*_format_counts(sink), *_format_latency(sink.latency))
    yield sinks
    if found.steps:
        yield _steps(found)


def _overview(job: str, found: Metrics, newest: Batch) -> RenderableType:
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in newest.phases.items() if seconds >= 0.005)
    commands = ", ".join(f"{count:,} {outcome}" for outcome, count in found.commands.items() if count)
    interval_s = found.checkpoint_interval_ms / 1000
    unit = "interval" if interval_s else "micro-batch"
    units = "intervals" if interval_s else "micro-batches"
    lines = {
        "job": f"{job} ({newest.run}), {'running' if found.running else 'not running'}",
        "mode": found.mode + (f", intervals of {interval_s:g} s" if interval_s else ""),
        f"newest {unit}": f"{newest.batch}, ended {format_milliseconds(newest.ended_ms)}, took "
        f"{newest.duration_s:.2f} s: {phases}",
        "at work": f"{found.utilisation:.0%} of the last {found.seconds:.0f} s, in {found.batches_per_second:.2f} "
        f"{units} a second of {found.mean_busy_s:.2f} s",
        "tasks": f"{newest.parallelism} for each step, {newest.cores} at a time",
        "dead letters": f"{found.dead_letters:,}",
        "commands": commands or "none",
    }
    use = newest.memory
    if use is not None:
        heap = f"heap {format_bytes(use.heap_used_bytes)} of {format_bytes(use.heap_max_bytes)}"
        lines["memory"] = (
            f"driver {format_bytes(use.driver_bytes)}, JVM {format_bytes(use.jvm_bytes)} ({heap}), workers "
            f"{format_bytes(use.workers_bytes)}; garbage {use.gc_seconds:.1f} s"
        )
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in lines.items():
        table.add_row(name, escape(text))
    return Group(table, "")


def _steps(found: Metrics) -> Table:
    table = _table("step", "records", "per second", "skew", "keys", "state", "held", "late", "watermark")
    for step in found.steps:
        lost = step.late + step.without_window
        table.add_row(
            *_format_counts(step),
            "-" if step.skew is None else f"{step.skew:.2f}",
            f"{step.keys:,}",
            format_bytes(step.state_bytes),
            format_bytes(step.held_bytes) if step.held_bytes else "-",
            f"{lost:,}" if lost else "-",
            "-" if step.watermark_ms is None else format_milliseconds(step.watermark_ms),
        )
    return table


def _format_counts(one: StreamMetrics | SinkMetrics | StepMetrics) -> tuple[str, str, str]:
    if one.records is None or one.per_second is None:
        return escape(one.name), "", ""
    return escape(one.name), f"{one.records:,}", f"{one.per_second:,.1f}"


def _format_latency(latency: SinkLatency | None) -> tuple[str, ...]:
    if latency is None:
        return ("-",) * 4
    shown = (latency.p50_s, latency.p95_s, latency.p99_s, latency.longest_s)
    return tuple(map(seconds_text, shown))


def _format_lag(lag: JobLag | None) -> tuple[str, str]:
    if lag is None:
        return "-", ""
    amounts = [
        format_count(count, unit) for unit, count in (("records", lag.records), ("files", lag.files)) if count
    ]
    if lag.bytes:
        amounts.append(format_bytes(lag.bytes))
    return " ".join(amounts) or "-", f"{lag.seconds:,.1f} s" if lag.seconds else ""


def _table(*titles: str) -> Table:
    """Return a table of names with numbers, under these titles."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number > 0)
    return table
