"""Payments of some days, a few of them fraud: `python feed.py FOLDER` writes them, each day with what was fraud."""

import json
import random
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]

CARDS = [f"C{number:03}" for number in range(200)]
FEATURES = ("amount", "hour", "distance", "new_device")


def day(number: int, count: int = 2000) -> tuple[list[Record], list[int]]:
    """Return the payments of a day, and the numbers of those that are fraud."""
    draw = random.Random(number)
    found: list[Record] = []
    fraud: list[int] = []
    for place in range(count):
        is_fraud = draw.random() < 0.06
        payment: Record = {
            "payment": number * 100_000 + place,
            "card": draw.choice(CARDS),
            "amount": round(draw.lognormvariate(3.2, 0.8), 2),
            "hour": round(draw.gauss(14, 4) % 24, 2),
            "distance": round(draw.expovariate(1 / 8), 2),
            "new_device": float(draw.random() < 0.05),
        }
        if is_fraud:
            fraud.append(payment["payment"])
            # Either large amounts far away, or small ones at night from a new device.
            if draw.random() < 0.5:
                payment |= {
                    "amount": round(draw.gauss(320, 80), 2),
                    "distance": round(draw.gauss(300, 90), 2),
                }
            else:
                payment |= {"hour": round(draw.gauss(3, 1) % 24, 2), "new_device": 1.0}
        found.append(payment)
    return found, fraud


def write(folder: Path, days: int) -> dict[int, list[int]]:
    """Write a file for each day; return the payments that are fraud by day."""
    fraud = {}
    for number in range(1, days + 1):
        payments, fraud[number] = day(number)
        place = folder / str(number)
        place.mkdir(parents=True)
        lines = "".join(json.dumps(payment) + "\n" for payment in payments)
        (place / "payments.jsonl").write_text(lines)
    return fraud


if __name__ == "__main__":
    write(Path(sys.argv[1]), 6)
