"""Clicks of a morning: `python feed.py FOLDER` writes them as JSON Lines, one file per hour of arrival.

Most arrive within a minute. Occasionally a phone was offline, and its user's clicks arrive an hour or two later.
"""

import datetime as dt
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MORNING = dt.datetime(2026, 3, 2, 8, tzinfo=dt.UTC)
PAGES = ("home", "search", "product", "basket", "checkout")
HOURS = 4
OFFLINE = 0.03


def arrivals(users: int, seed: int = 1) -> Iterator[tuple[float, Record]]:
    """Yield the clicks of users in no order: the arrival time, in seconds since the morning began, and the click."""
    numbers = random.Random(seed)
    for user in range(users):
        second = numbers.uniform(0, 3_600)
        while second < HOURS * 3_600:
            late_s = numbers.uniform(3_600, 7_200) if numbers.random() < OFFLINE else numbers.uniform(0, 50)
            at = MORNING + dt.timedelta(seconds=int(second))
            yield (
                second + late_s,
                {"user": f"U{user:02}", "page": numbers.choice(PAGES), "at": at.isoformat()},
            )
            # Most of the time the user continues; sometimes they take a break.
            second += numbers.uniform(5, 240) if numbers.random() < 0.85 else numbers.uniform(1_000, 4_000)


def hours(users: int, seed: int = 1) -> list[list[Record]]:
    """Return the clicks that arrive in each hour, in order of arrival."""
    found = sorted(arrivals(users, seed), key=lambda one: one[0])
    last = int(found[-1][0] // 3_600)
    return [[click for second, click in found if second // 3_600 == number] for number in range(last + 1)]


def write(folder: Path, users: int = 12) -> None:
    """Write a file for each hour."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, clicks in enumerate(hours(users), 1):
        (folder / f"{number:02}.jsonl").write_text("".join(json.dumps(click) + "\n" for click in clicks))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
