"""A shop: `python feed.py FOLDER` writes its clicks, campaigns, orders and payments as JSON Lines."""

import json
import random
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]

START_MS = 1_772_442_000_000
HOUR_MS = 3_600_000


def shop(orders: int = 300, seed: int = 1) -> dict[str, list[Record]]:
    """Return the records of each stream, in time order, over a day."""
    numbers = random.Random(seed)
    end_ms = 24 * HOUR_MS
    campaigns = [
        {"name": name, "price": numbers.randrange(10, 90) / 4, "since": START_MS + hour * HOUR_MS}
        for hour in range(0, 24, 6)
        for name in ("spring", "outlet")
    ]
    clicks, placed, payments = [], [], []
    for number in range(orders):
        at = START_MS + end_ms * number // orders + numbers.randrange(1000)
        clicks.append({"id": number, "campaign": numbers.choice(("spring", "outlet", "none")), "at": at})
        placed.append({"id": number, "amount": numbers.randrange(100, 9000) / 4, "at": at})
        if numbers.random() < 0.9:
            waited = numbers.randrange(2 * HOUR_MS) if numbers.random() < 0.2 else numbers.randrange(600_000)
            payments.append({"order_id": number, "paid": placed[-1]["amount"], "at": at + waited})
    payments.sort(key=lambda one: (one["at"], one["order_id"]))
    return {"campaigns": campaigns, "clicks": clicks, "orders": placed, "payments": payments}


def write(folder: Path) -> None:
    """Write a folder for each stream."""
    for name, records in shop().items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / name / "001.jsonl").write_text(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
