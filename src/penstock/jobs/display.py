"""The run display: show the progress of a run on a terminal or as plain lines."""

from __future__ import annotations

import datetime as dt
import logging
import time
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from penstock.bindings.secrets import without_secrets

if TYPE_CHECKING:
    from penstock.jobs.commit import EventTime
    from penstock.jobs.runner import Progress, RunSummary
    from penstock.metrics.latency import Percentiles
from penstock.base.durations import seconds_text
from penstock.base.sizes import format_count

__all__ = ["RunDisplay", "units_of"]

_PLAIN_INTERVAL_S: Final = 5.0
# The clients of brokers have loggers of their own, which are not shown.
_LOGGERS: Final = ("penstock.jobs", "penstock.sources")


class RunDisplay:
    """Shows progress while a job runs: a live table on a terminal, elsewhere a line every 5 seconds at most."""

    def __init__(self, console: Console, job: str) -> None:
        self._console = console
        self._job = job
        self._live: Live | None = None
        self._last_plain = 0.0
        self._last_batch = -1
        self._warnings: Final = _Warnings(self)

    def __enter__(self) -> Self:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._warnings)
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._warnings)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, progress: Progress) -> None:
        """Show the progress of a run."""
        if self._live is not None:
            self._live.update(_view(self._job, progress))
            return
        # A micro-batch is counted a moment before its commit, when its duration becomes known.
        if progress.batch_ms is None:
            return
        now = time.monotonic()
        if progress.batch_id != self._last_batch and now - self._last_plain >= _PLAIN_INTERVAL_S:
            self._last_plain, self._last_batch = now, progress.batch_id
            self._console.print(_line(progress), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a sentence above the live display."""
        self._console.print(text, soft_wrap=True, markup=False)

    def print_summary(self, summary: RunSummary) -> None:
        """Print the summary of the run."""
        table = Table(title=f"{summary.job_id}: {summary.status}, {summary.batches} {units_of(summary)}")
        table.add_column("")
        table.add_column("name")
        table.add_column("count", justify="right")
        for kind, counts in (
            ("in", summary.records_in),
            ("out", summary.records_out),
            ("keys", summary.state),
            ("in windows", summary.in_windows),
            ("late", summary.late),
            ("without window", summary.without_window),
        ):
            for name, count in counts.items():
                table.add_row(kind, name, f"{count:,}")
        for step, found in summary.event_time.items():
            table.add_row("watermark", step, _watermark(found))
            table.add_row("behind the clock", step, _format_distance(found))
            if found.held_by is not None:
                table.add_row("held by", step, found.held_by)
        for sink, latency in summary.latency.items():
            table.add_row("latency", sink, format_latency(latency))
        if summary.commands:
            table.add_row("commands", "", f"{summary.commands:,}")
        table.add_row(
            "dead letters",
            "",
            f"{summary.dead_letters:,}",
        )
        self._console.print(table)
        if summary.dead_letters:
            # A table would cut the path off at the width of the terminal.
            self._console.print(f"Dead letters: {summary.dead_letters_at}", soft_wrap=True, markup=False)


class _Warnings(logging.Handler):
    """Shows the warnings of the run and its receivers."""

    def __init__(self, display: RunDisplay) -> None:
        super().__init__(logging.WARNING)
        self._display: Final = display

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning."""
        self._display.note(f"Warning: {without_secrets(record.getMessage())}")


def _batch_time(progress: Progress) -> str:
    return "-" if progress.batch_ms is None else f"{progress.batch_ms:,.0f} ms"


def _lag(progress: Progress) -> str:
    behind = {name: lag for name, lag in progress.lag.items() if any(lag.values())}
    amounts = [
        f"{name} {' '.join(format_count(n, unit) for unit, n in lag.items())}" for name, lag in behind.items()
    ]
    return ", ".join(amounts) or "-"


def _watermark(found: EventTime) -> str:
    at = found.watermark
    if isinstance(at, dt.datetime):
        return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"
    return at or "none yet"


def _format_distance(found: EventTime) -> str:
    """Format how far a step is behind the clock, or ahead of it if records have times in the future."""
    if found.behind_s is None:
        return "-"
    return f"{_format_span(-found.behind_s)} ahead" if found.behind_s < 0 else _format_span(found.behind_s)


def _format_span(span_s: float) -> str:
    """Format a time span in the largest unit that fits at least twice."""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if span_s >= 2 * seconds:
            return f"{span_s / seconds:,.0f} {unit}"
    return f"{span_s:.1f} s"


def _build_times(progress: Progress) -> Table:
    """Build the table of the event time of each step."""
    table = Table()
    table.add_column("event time of")
    for title in ("watermark", "behind the clock", "held by", "late"):
        table.add_column(title, justify="right")
    for step, found in progress.event_time.items():
        late = f"{progress.late.get(step, 0):,}"
        table.add_row(step, _watermark(found), _format_distance(found), found.held_by or "-", late)
    return table


def _time_in_line(step: str, found: EventTime, late: int) -> str:
    held = "" if found.held_by is None else f", held by {found.held_by}"
    ahead = found.behind_s is not None and found.behind_s < 0
    clock = (
        f"ahead of the clock {_format_span(-(found.behind_s or 0))}"
        if ahead
        else f"behind the clock {_format_distance(found)}"
    )
    return f"; {step}: watermark {_watermark(found)}, {clock}{held}, late={late:,}"


def _line(progress: Progress) -> str:
    counts = " ".join(
        f"{name}={count:,}" for name, count in (progress.records_in | progress.records_out).items()
    )
    times = (
        _time_in_line(step, found, progress.late.get(step, 0)) for step, found in progress.event_time.items()
    )
    unit = "interval" if progress.mode == "real time" else "batch"
    return (
        f"{unit} {progress.batch_id}: {counts} commands={progress.commands:,} "
        f"dead-letters={progress.dead_letters:,} {progress.rows_per_s:,.0f} rows/s, {_describe_speed(progress)}, "
        f"lag: {_lag(progress)}{''.join(times)}"
    )


def _describe_speed(progress: Progress) -> str:
    """Say how long a micro-batch takes; in real time, how long outputs take."""
    if progress.mode != "real time":
        return f"batch time {_batch_time(progress)}"
    latencies = (f"{sink} {format_latency(found)}" for sink, found in progress.latency.items())
    return f"latency: {', '.join(latencies) or '-'}"


def units_of(summary: RunSummary) -> str:
    """Return the counts of a run."""
    return "intervals" if summary.mode == "real time" else "micro-batches"


def format_latency(found: Percentiles) -> str:
    """Format a latency."""
    return (
        f"p50 {seconds_text(found.p50_s)}, p95 {seconds_text(found.p95_s)}, p99 {seconds_text(found.p99_s)}"
    )


def _view(job: str, progress: Progress) -> RenderableType:
    table = _table(job, progress)
    return Group(table, _build_times(progress)) if progress.event_time else table


def _table(job: str, progress: Progress) -> Table:
    table = Table(title=job)
    is_live = progress.mode == "real time"
    unit, speed = ("interval", "latency") if is_live else ("micro-batch", "batch time")
    for title in (unit, "in", "out", "commands", "dead letters", "rows/s", speed, "lag"):
        table.add_column(title, justify="right")
    latencies = "\n".join(f"{sink} {format_latency(found)}" for sink, found in progress.latency.items())
    table.add_row(
        str(max(progress.batch_id, 0)) if progress.batch_id >= 0 else "starting",
        "\n".join(f"{name} {count:,}" for name, count in progress.records_in.items()),
        "\n".join(f"{name} {count:,}" for name, count in progress.records_out.items()),
        f"{progress.commands:,}",
        f"{progress.dead_letters:,}",
        f"{progress.rows_per_s:,.0f}",
        (latencies or "-") if is_live else _batch_time(progress),
        _lag(progress),
    )
    return table
