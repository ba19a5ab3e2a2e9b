"""The view: show the rooms, their settings and the job's commands, on a terminal or as plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

__all__ = ["Change", "Display", "Room", "Snapshot", "plain_line", "render"]

_PLAIN_INTERVAL_S: Final = 2.0
_FRESH_S: Final = 6.0  # how long a control change is highlighted
_OTHER_LINES: Final = 9  # of the view, in addition to the rooms
_OTHER_COLUMNS: Final = 70  # in addition to the bar
_SHORTEST_BAR, _LONGEST_BAR = 10, 33
_COLDEST, _WARMEST = 14.0, 27.0  # degrees Celsius at the ends of the bar


@dataclass(frozen=True)
class Change:
    """A control change, and the time until the heater had its command.

    Attributes:
        ago_s: the time since the change.
        before: the desired temperature before the change, in degrees.
        after: the desired temperature after it.
        command: the command to the heater.
        answered_s: the time until that command was read back; None if it was not yet.

    """

    sensor_id: int
    ago_s: float
    before: float
    after: float
    command: str = ""
    answered_s: float | None = None

    def __str__(self) -> str:
        asked = f"{self.before:.1f}° → {self.after:.1f}°"
        return asked if self.answered_s is None else f"{asked}, {self.command} after {self.answered_s:.1f} s"


@dataclass(frozen=True)
class Room:
    """The current state of a room; `change` is its last control change."""

    sensor_id: int
    temperature: float
    desired: float
    band: float
    heating: bool
    change: Change | None


@dataclass(frozen=True)
class Snapshot:
    """Everything that the view shows at one moment. Counts are totals; `judged` is the number of checked readings."""

    phase: Literal["starting", "running", "finishing", "done"]
    place: str
    elapsed_s: float
    seconds: float
    rooms: Sequence[Room] = ()
    hidden_rooms: int = 0
    batches: int = 0
    batch_ms: float = 0.0
    rows_per_s: float = 0.0
    readings: int = 0
    commands: int = 0
    control_changes: int = 0
    last_change: Change | None = None
    judged: int = 0
    violations: int = 0


@dataclass
class Display:
    """A display of snapshots: a live view if standard error is a terminal, else a line every two seconds.

    Standard output remains free for the result.
    """

    console: Console | None = None
    _live: Live | None = None
    _last_plain: float = 0.0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        if self.console is None:
            # A duplicate descriptor, since standard error goes to Spark's log while Spark starts.
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            file = os.fdopen(os.dup(2), "w", encoding=encoding, errors="replace")
            self.console = Console(file=self._stack.enter_context(file), highlight=False)
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._live = None
        self._stack.close()

    @property
    def rooms(self) -> int:
        """The number of rooms that fit."""
        return max(4, self.console.height - _OTHER_LINES) if self.console is not None else 12

    def note(self, sentence: str) -> None:
        """Print a sentence before there is a snapshot."""
        assert self.console is not None
        self.console.print(sentence, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        assert self.console is not None
        if self._live is not None:
            self._live.update(render(snapshot, self.console.width), refresh=True)
            return
        now = time.monotonic()
        if now - self._last_plain >= _PLAIN_INTERVAL_S:
            self._last_plain = now
            self.console.print(plain_line(snapshot), soft_wrap=True, markup=False)


def plain_line(snapshot: Snapshot) -> str:
    """Format a snapshot as one line."""
    if snapshot.phase == "starting":
        return f"{snapshot.elapsed_s:.0f} s: starting Spark"
    line = (
        f"{snapshot.elapsed_s:.0f} s of {snapshot.seconds:.0f} s: micro-batch {snapshot.batches}, "
        f"{snapshot.batch_ms:,.0f} ms, {snapshot.rows_per_s:,.0f} rows/s, readings={snapshot.readings:,} "
        f"commands={snapshot.commands:,} control changes={snapshot.control_changes} "
        f"violations={snapshot.violations}"
    )
    change = snapshot.last_change
    return line if change is None else f"{line}; room {change.sensor_id}: {change}"


def render(snapshot: Snapshot, columns: int) -> RenderableType:
    """Render a snapshot for a terminal with that many columns."""
    title = Text.assemble(("penstock demo", "bold"), f"  temperature-control through {snapshot.place}")
    bar = min(_LONGEST_BAR, max(_SHORTEST_BAR, columns - _OTHER_COLUMNS))
    inside: list[RenderableType] = [_rooms(snapshot, bar), Text(), _status(snapshot), _latest(snapshot)]
    return Panel(
        Group(*inside), title=title, title_align="left", subtitle=_clock(snapshot), subtitle_align="right"
    )


def _clock(snapshot: Snapshot) -> Text:
    if snapshot.phase == "starting":
        return Text("starting Spark", "yellow")
    if snapshot.phase == "finishing":
        return Text("finishing: the job processes the remaining records, then all is checked again", "yellow")
    if snapshot.phase == "done":
        return Text("done", "green")
    return Text(f"{snapshot.elapsed_s:.0f} s of {snapshot.seconds:.0f} s · Ctrl-C ends it")


def _rooms(snapshot: Snapshot, bar: int) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("room", justify="right")
    table.add_column("now", justify="right", min_width=5)
    table.add_column(Text(f"{_COLDEST:.0f}°{f'{_WARMEST:.0f}°':>{bar - 3}}"), min_width=bar, no_wrap=True)
    table.add_column("wanted", min_width=11, no_wrap=True)
    table.add_column("heater", min_width=6, no_wrap=True)
    table.add_column("last control change", min_width=30, no_wrap=True)
    for room in snapshot.rooms:
        fresh = room.change is not None and room.change.ago_s < _FRESH_S
        heater = Text("● ON", "bold red") if room.heating else Text("○ off", "dim")
        table.add_row(
            str(room.sensor_id),
            f"{room.temperature:.1f}°",
            _draw_bar(room, bar),
            f"{room.desired:.1f}° ± {room.band:.1f}",
            heater,
            Text("" if room.change is None else str(room.change), "bold yellow" if fresh else "dim"),
            style="bold" if fresh else "",
        )
    if snapshot.hidden_rooms:
        table.add_row("", "", Text(f"and {snapshot.hidden_rooms:,} more rooms", "dim"))
    return table


def _draw_bar(room: Room, width: int) -> Text:
    """Draw the temperature as a bar on which the desired band is marked."""
    bar = Text()
    low, now, high = (
        _cell(temperature, width)
        for temperature in (room.desired - room.band, room.temperature, room.desired + room.band)
    )
    colour = "red" if room.heating else "blue"
    for cell in range(width):
        wanted = " on green" if low <= cell <= high else ""
        if cell == now:
            bar.append("●", f"bold {colour}{wanted}")
        elif cell < now:
            bar.append("━", f"{colour}{wanted}")
        else:
            bar.append(" " if wanted else "·", f"bright_black{wanted}")
    return bar


def _cell(temperature: float, width: int) -> int:
    share = (temperature - _COLDEST) / (_WARMEST - _COLDEST)
    return min(width - 1, max(0, round(share * (width - 1))))


def _status(snapshot: Snapshot) -> Text:
    clean = "bold green" if snapshot.violations == 0 else "bold red"
    return Text.assemble(
        (f"{snapshot.rows_per_s:,.0f}", "bold"),
        " rows/s · ",
        (f"{snapshot.batches:,}", "bold"),
        " micro-batches, the last ",
        (f"{snapshot.batch_ms:,.0f} ms", "bold"),
        " · ",
        (f"{snapshot.readings:,}", "bold"),
        " readings · ",
        (f"{snapshot.commands:,}", "bold"),
        " commands\n",
        (f"{snapshot.control_changes}", "bold"),
        " control changes · ",
        (f"{snapshot.violations} violations", clean),
        f" ({snapshot.judged:,} readings judged again by a fold)",
        no_wrap=True,
        overflow="ellipsis",
    )


def _latest(snapshot: Snapshot) -> Text:
    change = snapshot.last_change
    if change is None:
        return Text("A control change comes every few seconds.", "dim")
    fresh = change.ago_s < _FRESH_S
    return Text(
        f"{change.ago_s:.0f} s ago room {change.sensor_id} asked for another temperature: {change}",
        "bold yellow" if fresh else "",
        no_wrap=True,
        overflow="ellipsis",
    )
