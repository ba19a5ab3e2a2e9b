"""Run the job on the page views of three days, change its flags before each day, and show what users saw."""

import datetime as dt
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from feature_flags.feed import DAYS, HOURS, write  # noqa: E402  # found by the line above
from running_job import RunningJob  # noqa: E402  # found by the line above

Record = dict[str, Any]
WIDTH = 20


def main() -> None:
    console = Console(highlight=False, width=110)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="feature-flags-") as name:
        folder = Path(name)
        write(folder / "feed")
        job = RunningJob(HERE / "flags_job.py", folder, streams=["views", "flags"], sinks=["exposures"])
        console.print("Starting the job ...")
        with job:
            days = [play(job, number, console) for number in range(1, len(DAYS) + 1)]
            receipts = job.receipts()
        console.print()
        console.print(shares_table(days))
        console.print(receipts_table(receipts))
        switched = switched_off([one for day in days[:2] for one in day])
        console.print(f"\nUsers who lost the new checkout while its share grew: [bold]{switched}[/].")
        console.print(f"One job, never restarted, {time.monotonic() - began:.0f} s.")


def play(job: RunningJob, number: int, console: Console) -> list[Record]:
    """Change the flags, hand in the views of a day, and return the exposures of that day."""
    exposures = job.play(job.folder / "feed" / str(number), ("flags", "commands", "views"), "exposures")
    console.print(f"[bold]Day {number}[/]: {DAYS[number - 1].title}; {len(exposures):,} exposures")
    return exposures


def shares_table(days: list[list[Record]]) -> Table:
    """Return a table of the share of views with the new checkout, by hour, with the control versions in force."""
    table = Table("hour", title="Views with the new checkout, by the hour of the view", title_justify="left")
    for number in range(1, len(days) + 1):
        table.add_column(f"day {number}")
    for hour in HOURS:
        table.add_row(f"{hour:02}:00", *(share(day, hour) for day in days))
    return table


def share(exposures: list[Record], hour: int) -> str:
    """Return the share of an hour's views with the new checkout, as a bar."""
    found = [
        one
        for one in exposures
        if one["flag"] == "new-checkout" and dt.datetime.fromisoformat(one["at"]).hour == hour
    ]
    on = sum(one["variant"] == "on" for one in found) / max(len(found), 1)
    versions = ",".join(map(str, sorted({one["control_version"] for one in found})))
    bar = "█" * round(on * WIDTH)
    return f"[cyan]{bar:<{WIDTH}}[/] {on:4.0%} [dim]v{versions}[/]"


def receipts_table(receipts: list[Record]) -> Table:
    """Return a table of the outcome of each command."""
    table = Table("command", "kind", "target", "status", title="Receipts", title_justify="left")
    for one in receipts:
        table.add_row(one["id"], one["kind"], one["target"], one["status"])
    return table


def switched_off(exposures: list[Record]) -> int:
    """Return how many users had the new checkout at one time and not at a later one."""
    had: set[str] = set()
    lost: set[str] = set()
    for one in sorted(exposures, key=lambda one: str(one["at"])):
        if one["flag"] != "new-checkout":
            continue
        if one["variant"] == "on":
            had.add(one["user"])
        elif one["user"] in had:
            lost.add(one["user"])
    return len(lost)


if __name__ == "__main__":
    main()
