"""Payments of four hours, with the rule changes before each hour: `python feed.py FOLDER` writes them.

FOLDER/1 to FOLDER/4 get the files rules.jsonl, commands.jsonl and payments.jsonl; empty files are omitted.
"""

import datetime as dt
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MORNING = dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC)
# What people buy, with the range of amounts in cents.
SHOPS = {
    "groceries": (500, 9_000),
    "fuel": (3_000, 9_000),
    "books": (800, 4_000),
    "travel": (6_000, 40_000),
    "electronics": (9_000, 50_000),
}

SPREE = {
    "name": "spree",
    "version": 1,
    "measure": "sum",
    "threshold": 150_000,
    "minutes": 60,
    "merchant_in": ["electronics", "travel"],
    "action": "call the owner",
}
FOREIGN = {
    "name": "foreign-cards",
    "version": 1,
    "measure": "sum",
    "threshold": 60_000,
    "last": 3,
    "country_in": ["BR", "JP", "US"],
    "action": "review",
}
TESTING = {
    "name": "card-testing",
    "version": 1,
    "measure": "count",
    "threshold": 4,
    "minutes": 10,
    "merchant_in": ["gift cards"],
    "action": "block the card",
}


@dataclass(frozen=True)
class Stage:
    """Changes of the rules, by the control stream or by commands, before an hour of payments."""

    title: str
    rules: list[Record]
    commands: list[Record]


def command(kind: str, payload: Any, number: int) -> Record:
    """Return a command to the step `judge`."""
    target = {"step": "judge"}
    return {"id": f"{kind}-{number}", "kind": kind, "target": target, "issued_by": "ann", "payload": payload}


STAGES = [
    Stage("two rules arrive on the control stream", [SPREE, FOREIGN], []),
    Stage(
        "commands add a rule and tighten one",
        [],
        [
            command("add-rule", TESTING, 1),
            command("update-rule", {**SPREE, "version": 2, "threshold": 120_000}, 1),
        ],
    ),
    Stage(
        "one rule is paused, and two commands are wrong",
        [],
        [
            command("pause-rule", "foreign-cards", 1),
            command("add-rule", SPREE, 2),
            command("update-rule", {**SPREE, "version": 3, "measure": "average"}, 2),
        ],
    ),
    Stage(
        "it is resumed with clear counters, and the control stream deletes one",
        [{**TESTING, "deleted": True}],
        [
            command("resume-rule", "foreign-cards", 1),
            command("clear-rule", "foreign-cards", 1),
            command("list-rules", None, 1),
        ],
    ),
]


def payments(hour: int) -> list[Record]:
    """Return the payments of an hour, from shoppers and a few who test stolen cards, up to two minutes late."""
    numbers = random.Random(hour)
    start = MORNING + dt.timedelta(hours=hour)
    found = [*shoppers(numbers, start), *testers(numbers, start)]
    delay = {id(one): dt.timedelta(seconds=numbers.uniform(0, 120)) for one in found}
    return sorted(found, key=lambda one: dt.datetime.fromisoformat(one["at"]) + delay[id(one)])


def shoppers(numbers: random.Random, start: dt.datetime) -> Iterator[Record]:
    """Yield payments of sixty accounts, some with a foreign card."""
    for _ in range(600):
        account = numbers.randrange(60)
        merchant = numbers.choice(list(SHOPS))
        amount = numbers.randint(*SHOPS[merchant])
        country = ("BR", "JP", "US")[account % 3] if account % 5 == 0 else "DE"
        yield payment(f"A{account:02}", country, merchant, amount, start, numbers.uniform(0, 3_600))


def testers(numbers: random.Random, start: dt.datetime) -> Iterator[Record]:
    """Yield payments of three accounts whose stolen cards are tested on gift cards, within five minutes each."""
    for account in numbers.sample(range(60), 3):
        begin = numbers.uniform(0, 3_300)
        for _ in range(8):
            yield payment(f"A{account:02}", "DE", "gift cards", 500, start, begin + numbers.uniform(0, 300))


def payment(
    account: str, country: str, merchant: str, amount: int, start: dt.datetime, second: float
) -> Record:
    """Return a payment as JSON."""
    at = (start + dt.timedelta(seconds=int(second))).isoformat()
    return {"account": account, "country": country, "merchant": merchant, "amount": amount, "at": at}


def write(folder: Path) -> None:
    """Write all stages into folders."""
    for number, stage in enumerate(STAGES, 1):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        streams = {"rules": stage.rules, "commands": stage.commands, "payments": payments(number - 1)}
        for stream, records in streams.items():
            if records:
                lines = "".join(json.dumps(record) + "\n" for record in records)
                (place / f"{stream}.jsonl").write_text(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
