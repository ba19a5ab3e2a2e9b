"""The metrics of a job of a server, as tables or JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from penstock.cli.output import escaped, print_json, stdout
from penstock.cli.texts import instant_text
from penstock.sizes import bytes_text

if TYPE_CHECKING:
    from penstock.client.asking import Server

__all__ = ["figures_table", "print_metrics", "show_metrics"]

_WATCH_S: Final = 1.0


def print_metrics(server: Server, job_id: str, window_s: int, *, watch: bool) -> None:
    """Print the metrics as a line of JSON, and with `watch` a line for each micro-batch from then on."""
    path = f"/v1/jobs/{job_id}/metrics"
    found = server.get(path, window_s=window_s, limit=1)
    print_json(found)
    if watch:
        newest = found["batches"][-1]["batch"] if found["batches"] else None
        for batch in server.stream(f"{path}/stream", after=newest):
            print_json(batch)


def show_metrics(server: Server, job_id: str, window_s: int, *, watch: bool) -> None:
    """Show the metrics as tables, and with `watch` anew each second."""

    def tables() -> RenderableType:
        found = server.patient_get(f"/v1/jobs/{job_id}/metrics", window_s=window_s, limit=1)
        return Group(*_parts(job_id, found))

    if not watch:
        stdout.print(tables())
        return
    with Live(tables(), console=stdout, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(tables(), refresh=True)


def _parts(job_id: str, found: dict[str, Any]) -> Iterator[RenderableType]:
    """What there is to show."""
    if not found["batches"]:
        yield f"The job {job_id} {'runs, and' if found['running'] else 'does not run, and'} has no figures yet."
        return
    newest = found["batches"][-1]
    phases = ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in newest["phases"].items() if seconds >= 0.005
    )
    commands = ", ".join(f"{count:,} {outcome}" for outcome, count in found["commands"].items() if count)
    lines = {
        "job": f"{job_id}, {'running' if found['running'] else 'not running'}",
        "newest micro-batch": f"{newest['batch']}, ended {instant_text(newest['ended_ms'])}, took "
        f"{newest['duration_s']:.2f} s: {phases}",
        "at work": f"{found['utilisation']:.0%} of the last {found['seconds']:.0f} s, in "
        f"{found['batches_per_second']:.2f} micro-batches a second of {found['mean_busy_s']:.2f} s",
        "tasks": f"{newest['parallelism']} for each step, {newest['cores']} at a time",
        "dead letters": f"{found['dead_letters']:,}",
        "commands": commands or "none",
    }
    overview = Table(box=None, pad_edge=False, show_header=False)
    for name, text in lines.items():
        overview.add_row(name, escaped(text))
    yield Group(overview, "")
    streams = figures_table("stream", "records", "per second", "waiting", "for")
    for one in found["streams"]:
        streams.add_row(*_counted(one), *_waiting(one["lag"] or {}))
    yield streams
    sinks = figures_table("sink", "records", "per second")
    for one in found["sinks"]:
        sinks.add_row(*_counted(one))
    yield sinks
    if found["steps"]:
        steps = figures_table(
            "step", "records", "per second", "skew", "keys", "state", "held", "late", "watermark"
        )
        for one in found["steps"]:
            lost = one["late"] + one["without_window"]
            steps.add_row(
                *_counted(one),
                "-" if one["skew"] is None else f"{one['skew']:.2f}",
                f"{one['keys']:,}",
                bytes_text(one["state_bytes"]),
                bytes_text(one["held_bytes"]) if one["held_bytes"] else "-",
                f"{lost:,}" if lost else "-",
                "-" if one["watermark_ms"] is None else instant_text(one["watermark_ms"]),
            )
        yield steps


def _counted(one: dict[str, Any]) -> tuple[str, str, str]:
    return escaped(one["name"]), f"{one['records']:,}", f"{one['per_second']:,.1f}"


def _waiting(lag: dict[str, Any]) -> tuple[str, str]:
    amounts = [f"{lag[unit]:,} {unit}" for unit in ("records", "files") if lag.get(unit)]
    if lag.get("bytes"):
        amounts.append(bytes_text(lag["bytes"]))
    return " ".join(amounts) or "-", f"{lag['seconds']:,.1f} s" if lag.get("seconds") else ""


def figures_table(*titles: str) -> Table:
    """A table of names with numbers, under these titles."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number > 0)
    return table
