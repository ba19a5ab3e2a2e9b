"""Learn what is usual for each title, dump it, check the dump, and let an incompatible job start from it.

With RabbitMQ and an S3 server on this machine, commands come from a queue and dumps go to a bucket; else from a file
and to a folder.
"""

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import running_job  # noqa: E402  # found by the line above
from running_job import RunningJob  # noqa: E402  # found by the line above
from video_quality import services  # noqa: E402  # found by the line above
from video_quality.feed import TITLES, is_amiss, playbacks_of, write  # noqa: E402  # found by the line above
from video_quality.validation import validate  # noqa: E402  # found by the line above

Record = dict[str, Any]
WIDTH = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="a folder and a file, whatever is installed")
    parser.add_argument("--to", type=Path, default=Path("video_quality_results"), help="where pictures go")
    arguments = parser.parse_args()
    console = Console(highlight=False, width=110)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="video-quality-")))
        write(folder / "feed")
        dumps, commands, send = f"{folder / 'dumps'}", {}, None
        if services.are_installed() and not arguments.plain:
            console.print("Starting RabbitMQ and an S3 server ...")
            started = stack.enter_context(services.running(folder / "services"))
            os.environ.update(started.environment)
            dumps, commands, send = (
                f"s3://{services.BUCKET}/quality",
                {"commands": started.commands},
                started.publish,
            )
        elif not arguments.plain:
            console.print(f"Commands in a file, dumps in a folder. For a queue and a bucket: {services.HOW}.")
        days = run(folder, dumps, commands, send, arguments.to, console)
    console.print()
    console.print(days_table(days))
    console.print(f"\nTwo jobs, {time.monotonic() - began:.0f} s.")


def run(
    folder: Path,
    dumps: str,
    commands: dict[str, str],
    send: Callable[[bytes], None] | None,
    results: Path,
    console: Console,
) -> list[list[Record]]:
    """Run both jobs, and return what was unusual on each day."""
    job = functools.partial(
        RunningJob, streams=["playbacks"], sinks=["unusual"], bindings=commands, publish=send
    )
    days = []
    console.print("Starting the job ...")
    first = job(HERE / "quality_job.py", folder / "first", allow_write=dumps)
    with first:
        for day in (1, 2):
            days.append(play(first, folder, day, console))
            dump(first, f"{dumps}/day-{day}")
            console.print(f"Dumped to {dumps.replace(str(folder), '...')}/day-{day}.")
    console.print("\nValidating the dump of day 2 in the notebook ...")
    passed = validate(f"{dumps}/day-1", f"{dumps}/day-2", results)
    console.print(
        f"{passed} cells ran, all checks passed: {results / 'validate.ipynb'}, {results / 'moved.svg'}"
    )
    console.print("\nStarting a job with other key groups from the dump of day 2 ...")
    second = job(HERE / "wider_job.py", folder / "second", from_dump=f"{dumps}/day-2")
    with second:
        days.append(play(second, folder, 3, console))
    return days


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


def dump(job: RunningJob, place: str) -> None:
    """Let the job dump its state by a command, and wait until the dump is there."""
    command_id = place.rpartition("/")[2]
    job.send({"id": command_id, "kind": "dump-state", "payload": {"to": place, "format": "parquet"}})
    deadline = time.monotonic() + running_job.PATIENCE_S
    while not services.has_dump(place):
        job.check()
        refused = [one for one in job.receipts() if one["id"] == command_id and one["status"] != "APPLIED"]
        if refused or time.monotonic() > deadline:
            raise RuntimeError(f"There is no dump in {place}: {json.dumps(refused)}")
        time.sleep(0.1)


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
