"""Run the job on two minutes of reports from three cars, and show the top speeds of each car."""

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from car_events.feed import START_MS, write  # noqa: E402  # found by the line above
from running_job import Record, read, run_bounded  # noqa: E402  # found by the line above

SHOWN = 8


def main() -> None:
    console = Console(highlight=False, width=110)
    with tempfile.TemporaryDirectory(prefix="car-events-") as name:
        folder = Path(name)
        write(folder / "cars")
        console.print("Running the job ...")
        places = {"cars": f"jsonl:{folder / 'cars'}", "top-speeds": f"jsonl:{folder / 'top-speeds'}"}
        run_bounded(HERE / "top_speed_job.py", places)
        found = read(folder / "top-speeds")
    for car in sorted({one["car"] for one in found}):
        console.print(table(car, [one for one in found if one["car"] == car]))


def table(car: int, found: list[Record]) -> Table:
    """Return a table of the first top speeds of a car."""
    title = f"Car {car}: {len(found)} top speeds"
    shown = Table("km/h", "after seconds", "after metres", title=title, title_justify="left")
    for one in found[:SHOWN]:
        second, metres = (one["time"] - START_MS) / 1000, one["distance"]
        shown.add_row(str(one["speed"]), f"{second:.1f}", f"{metres:.0f}")
    return shown


if __name__ == "__main__":
    main()
