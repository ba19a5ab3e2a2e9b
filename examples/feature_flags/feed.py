"""Page views of three days, with the flag changes before each day: `python feed.py FOLDER` writes them.

FOLDER/1 to FOLDER/3 get the files flags.jsonl, commands.jsonl and views.jsonl; empty files are omitted.
"""

import datetime as dt
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MONDAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
HOURS = range(8, 20)
USERS = 400
VIEWS = 4_000


@dataclass(frozen=True)
class Day:
    """Changes of the flags, by the control stream or by commands, before the views of a day."""

    title: str
    flags: list[Record]
    commands: list[Record]


def at(day: int, hour: float) -> dt.datetime:
    """Return a time of a day; day 0 is Monday."""
    return MONDAY + dt.timedelta(days=day, hours=hour)


def checkout(version: int, percent: float, since: dt.datetime) -> Record:
    """Return the flag of the new checkout for a percentage of the users; two testers always have it."""
    return {
        "name": "new-checkout",
        "version": version,
        "percent": percent,
        "allow": ["u001", "u002"],
        "effective_at": since.isoformat(),
    }


def kill(names: list[str], since: dt.datetime, number: int) -> Record:
    """Return the command that turns features off for all users from a time on."""
    return {
        "id": f"kill-{number}",
        "kind": "set",
        "target": {"step": "assign"},
        "issued_by": "ann",
        "effective_at": since.isoformat(),
        "payload": {"killed": names},
    }


DAYS = [
    Day(
        "two flags, one of them for 10 % of the users",
        [
            checkout(1, 10, at(0, 0)),
            {"name": "dark-mode", "version": 2, "percent": 100, "effective_at": at(0, 0).isoformat()},
        ],
        [],
    ),
    Day(
        "announced the evening before: 50 % from noon, all from 16:00",
        # The later step is announced first: only the effective times count.
        [checkout(4, 100, at(1, 16)), checkout(3, 50, at(1, 12))],
        [],
    ),
    Day(
        "the new checkout fails at 10:00: killed by command, back at 14:00",
        [],
        [kill(["new-checkout"], at(2, 10), 1), kill([], at(2, 14), 2)],
    ),
]


def views(day: int) -> list[Record]:
    """Return the page views of a day in random order: many devices send theirs hours later."""
    numbers = random.Random(day)
    found = []
    for _ in range(VIEWS):
        time = at(day, numbers.uniform(HOURS.start, HOURS.stop)).replace(microsecond=0)
        user = f"u{numbers.randrange(USERS):03}"
        page = numbers.choice(["home", "search", "basket", "checkout"])
        found.append({"user": user, "page": page, "at": time.isoformat()})
    return found


def write(folder: Path) -> None:
    """Write all days into folders."""
    for number, day in enumerate(DAYS, 1):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        streams = {"flags": day.flags, "commands": day.commands, "views": views(number - 1)}
        for stream, records in streams.items():
            if records:
                lines = "".join(json.dumps(record) + "\n" for record in records)
                (place / f"{stream}.jsonl").write_text(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
