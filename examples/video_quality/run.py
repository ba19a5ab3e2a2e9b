"""Learn what is usual for each title, dump it, check the dump, and let an incompatible job start from it."""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import running_job  # noqa: E402  # found by the line above
from running_job import PENSTOCK, RunningJob  # noqa: E402  # found by the line above
from video_quality.feed import TITLES, is_amiss, playbacks_of, write  # noqa: E402  # found by the line above

Record = dict[str, Any]
WIDTH = 24
STATISTICS = ("least", "mean", "greatest")


def main() -> None:
    console = Console(highlight=False, width=110)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="video-quality-") as name:
        folder = Path(name)
        write(folder / "feed")
        dumps = folder / "dumps"
        dumps.mkdir()
        days = []
        console.print("Starting the job ...")
        first = RunningJob(
            HERE / "quality_job.py",
            folder / "first",
            streams=["playbacks"],
            sinks=["unusual"],
            allow_write=dumps,
        )
        with first:
            for day in (1, 2):
                days.append(play(first, folder, day, console))
                dump(first, dumps / f"day-{day}")
        changes = compare(dumps / "day-1", dumps / "day-2")
        console.print()
        console.print(changes_table(changes))
        console.print("\nStarting a job with other key groups from the dump of day 2 ...")
        second = RunningJob(
            HERE / "wider_job.py",
            folder / "second",
            streams=["playbacks"],
            sinks=["unusual"],
            from_dump=dumps / "day-2",
        )
        with second:
            days.append(play(second, folder, 3, console))
    console.print()
    console.print(days_table(days))
    console.print(f"\nTwo jobs, {time.monotonic() - began:.0f} s.")


def play(job: RunningJob, folder: Path, day: int, console: Console) -> list[Record]:
    """Hand in the playbacks of a day, and return what was unusual."""
    found = job.play(folder / "feed" / str(day), ("playbacks",), "unusual")
    told = {one["session"] for one in found}
    amiss = {one["session"] for one in playbacks_of(day) if is_amiss(one)}
    console.print(
        f"[bold]Day {day}[/]: {len(amiss)} playbacks of a broken transcoder, {len(told & amiss)} of them found; "
        f"{len(told - amiss)} others"
    )
    return found


def dump(job: RunningJob, place: Path) -> None:
    """Let the job dump its state by a command, and wait for the dump."""
    job.send({"id": place.name, "kind": "dump-state", "payload": {"to": str(place), "format": "csv"}})
    deadline = time.monotonic() + running_job.PATIENCE_S
    while not (place / "manifest.json").exists():
        job.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"There is no dump in {place}.")
        time.sleep(0.1)


def compare(before: Path, after: Path) -> list[Record]:
    """Return the statistics of what two dumps have learned: those of each weight in both."""
    command = [
        *PENSTOCK,
        "state",
        "diff",
        str(before),
        str(after),
        "--statistics",
        "--samples",
        "0",
        "-o",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (table,) = (one for one in json.loads(done.stdout)["statistics"] if one["name"] == "watch/usual")
    pairs = zip(table["before"], table["after"], strict=True)
    return [
        {"weight": one["name"].removeprefix("value."), "before": one, "after": other} for one, other in pairs
    ]


def changes_table(changes: list[Record]) -> Table:
    """Return a table of the weights in both dumps, over all titles."""
    table = Table("weight", title="What was learned, over all titles: day 1, day 2", title_justify="left")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for change in changes:
        cells = [f"{change['before'][name]:,.4g}, {change['after'][name]:,.4g}" for name in STATISTICS]
        table.add_row(change["weight"], *cells)
    return table


def days_table(days: list[list[Record]]) -> Table:
    """Return a table of the unusual playbacks of each title and day, as bars."""
    table = Table("title", title="Playbacks unlike those before", title_justify="left")
    for number in range(1, len(days) + 1):
        table.add_column(f"day {number}")
    counts = [Counter(one["title"] for one in day) for day in days]
    most = max((count for found in counts for count in found.values()), default=1)
    for title in TITLES:
        cells = [f"[cyan]{'█' * round(WIDTH * found[title] / most)}[/] {found[title]}" for found in counts]
        table.add_row(title, *cells)
    return table


if __name__ == "__main__":
    main()
