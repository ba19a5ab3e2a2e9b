"""The view: its content, on a terminal of any width and without one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.demo.view import Change, Display, Room, Snapshot, plain_line, render

CHANGE = Change(2, 1.0, 20.0, 23.0, "ON", 0.4)
ROOMS = [
    Room(1, 21.2, 21.0, 0.5, False, None),
    Room(2, 19.9, 23.0, 0.5, True, CHANGE),
    Room(3, -40.0, 90.0, 0.5, True, Change(3, 60.0, 20.0, 90.0)),
]
SNAPSHOT = Snapshot(
    phase="running",
    place="folders on this machine",
    elapsed_s=12,
    seconds=30,
    rooms=ROOMS,
    hidden_rooms=997,
    batches=40,
    batch_ms=231.0,
    rows_per_s=48.0,
    readings=4_032,
    commands=97,
    control_changes=3,
    last_change=CHANGE,
    judged=4_000,
    violations=0,
)


def drawn(snapshot: Snapshot, columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    console.print(render(snapshot, columns))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_the_view_keeps_its_height_at_any_width(columns: int) -> None:
    """It has one line per room and a fixed number of others, so that it does not jump."""
    assert len(drawn(SNAPSHOT, columns).splitlines()) == len(ROOMS) + 8


def test_the_view_shows_what_matters() -> None:
    """Rooms, wishes, heaters, the effect of the last change, and how the job is doing."""
    text = drawn(SNAPSHOT, 110)
    for part in (
        "19.9°",
        "23.0° ± 0.5",
        "● ON",
        "○ off",
        "20.0° → 23.0°, ON after 0.4 s",
        "997 more",
        "48 rows/s",
    ):
        assert part in text
    for part in (
        "40 micro-batches",
        "231 ms",
        "4,032 readings",
        "97 commands",
        "3 control changes",
        "0 violations",
    ):
        assert part in text


@pytest.mark.parametrize("phase", ["starting", "running", "finishing", "done"])
def test_every_phase_can_be_shown(phase: str) -> None:
    """This includes phases without data."""
    snapshot = Snapshot(phase, "folders", 0, 30)  # type: ignore[arg-type]
    assert drawn(snapshot, 100)
    assert plain_line(snapshot)


def test_without_a_terminal_there_are_plain_lines() -> None:
    """A line is printed now and then, without control sequences; standard output is not used."""
    file = io.StringIO()
    with Display(Console(file=file, force_terminal=False)) as display:
        for _ in range(5):
            display.show(SNAPSHOT)
    (line,) = file.getvalue().splitlines()
    assert line == plain_line(SNAPSHOT)
    assert "\x1b" not in line
    assert "violations=0; room 2: 20.0° → 23.0°, ON after 0.4 s" in line


def test_on_a_terminal_the_view_is_live_and_its_last_state_stays() -> None:
    """The last snapshot is what remains on the screen."""
    file = io.StringIO()
    with Display(Console(file=file, force_terminal=True, width=100, height=30)) as display:
        assert display.rooms == 21
        display.show(SNAPSHOT)
    assert "Ctrl-C ends it" in file.getvalue()


def test_the_display_makes_do_with_any_encoding(capfd: pytest.CaptureFixture[str]) -> None:
    """Without its own console it writes to standard error, in whatever encoding that has."""
    with Display() as display:
        display.note("Wait.")
        display.show(SNAPSHOT)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Wait.\n12 s of 30 s: micro-batch 40")
