"""Ask the query of top_speeds.sql as a batch and as a stream, and compare the answers."""

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from car_events.feed import START_MS, reports, write  # noqa: E402  # found by the line above
from running_job import Record, RunningJob, read, run_bounded  # noqa: E402  # found by the line above

SINKS = ("top_speeds", "fastest")
CARS, REPORTS = 3, 240


def main() -> None:
    console = Console(highlight=False, width=110)
    with tempfile.TemporaryDirectory(prefix="car-events-") as name:
        folder = Path(name)
        console.print("As a batch ...")
        batch = as_batch(folder / "batch")
        console.print("As a stream, in five parts ...")
        stream = as_stream(folder / "stream")
    shown = Table(
        "minute", "place", "car", "km/h", title="The two fastest cars of each minute", title_justify="left"
    )
    for (minute, place), one in sorted(batch["fastest"].items()):
        shown.add_row(str(minute)[11:16], str(place), str(one["car"]), str(one["top_speed"]))
    console.print(shown)
    if stream != batch:
        raise SystemExit("The stream has another answer than the batch.")
    console.print(f"The stream has the same answer, and the same {len(batch['top_speeds'])} top speeds.")


Answers = dict[str, dict[tuple[object, object], Record]]


def as_batch(folder: Path) -> Answers:
    """Return the answers for all reports at once."""
    write(folder / "cars", CARS, REPORTS)
    run_bounded(HERE / "top_speeds.sql", {name: f"jsonl:{folder / name}" for name in ("cars", *SINKS)})
    return answers(folder)


def as_stream(folder: Path) -> Answers:
    """Return the answers while reports come in."""
    found = list(reports(CARS, REPORTS))
    # A report of much later says that the last minute is over; its own minute is not.
    found.append({"car": CARS, "speed": 0, "distance": 0.0, "time": START_MS + 3_600_000})
    with RunningJob(HERE / "top_speeds.sql", folder, streams=["cars"], sinks=SINKS) as job:
        for number, first in enumerate(range(0, len(found), 150), 1):
            part = folder / f"{number:03}.tmp"
            part.write_text("".join(json.dumps(one) + "\n" for one in found[first : first + 150]))
            job.hand_in("cars", part)
            job.settle()
    return answers(folder)


def answers(folder: Path) -> Answers:
    """Return the rows of both tables. Of `fastest`, the newest row of each minute and place counts."""
    return {
        "top_speeds": {(one["car"], one["window_start"]): one for one in read(folder / "top_speeds")},
        "fastest": {
            (one["minute"], one["place"]): {"car": one["car"], "top_speed": one["top_speed"]}
            for one in read(folder / "fastest")
        },
    }


if __name__ == "__main__":
    main()
