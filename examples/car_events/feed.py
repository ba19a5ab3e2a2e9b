"""Cars on the road: `python feed.py FOLDER` writes their reports, in time order, as JSON Lines."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

START_MS = 1_772_442_000_000
EVERY_MS = 500


def reports(cars: int, count: int, seed: int = 1) -> Iterator[Record]:
    """Yield `count` reports of each car, which speeds up or slows down a little before each report."""
    numbers = random.Random(seed)
    speeds, distances = [50] * cars, [0.0] * cars
    for number in range(count):
        for car in range(cars):
            speeds[car] = min(max(speeds[car] + numbers.choice((-5, 5)), 0), 100)
            distances[car] += speeds[car] / 3.6 * EVERY_MS / 1000
            time = START_MS + number * EVERY_MS
            yield {"car": car, "speed": speeds[car], "distance": round(distances[car], 2), "time": time}


def write(folder: Path, cars: int = 3, count: int = 240) -> None:
    """Write the reports into files of a hundred reports each, which a job reads one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(report) + "\n" for report in reports(cars, count)]
    for number, first in enumerate(range(0, len(lines), 100), 1):
        (folder / f"{number:03}.jsonl").write_text("".join(lines[first : first + 100]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
