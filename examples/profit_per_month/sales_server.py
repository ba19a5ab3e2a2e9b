"""A server that sends sales: `python sales_server.py [--port 9181] [--sales 2000] [--per-second 200]`.

The first client that connects gets lines `date,month,category,product,profit`, then the connection closes. Each run
sends the same sales, with an invalid line now and then.
"""

import argparse
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from line_server import serve  # found by the line above

MONTHS = ("January", "February", "March", "April", "May", "June")
CATEGORIES = {
    "Sport": ("Bat", "Ball", "Tent"),
    "Kitchen": ("Pan", "Knife", "Kettle"),
    "Music": ("Guitar", "Drum", "Flute"),
}
BAD_LINES = ("no sale at all", "03-05-2026,May,Sport,Bat,much", "03-05-2026,May,Sport,Bat")
BAD_EVERY = 97


def sales(count: int, seed: int = 1) -> Iterator[str]:
    """Yield `count` lines of sales, some of them invalid."""
    numbers = random.Random(seed)
    for number in range(1, count + 1):
        month = numbers.randrange(len(MONTHS))
        category = numbers.choice(list(CATEGORIES))
        product = numbers.choice(CATEGORIES[category])
        day = numbers.randint(1, 28)
        yield f"{day:02}-{month + 1:02}-2026,{MONTHS[month]},{category},{product},{numbers.randint(100, 9_999)}"
        if number % BAD_EVERY == 0:
            yield BAD_LINES[number // BAD_EVERY % len(BAD_LINES)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Send sales to the first client that connects.")
    parser.add_argument("--port", type=int, default=9181)
    parser.add_argument("--sales", type=int, default=2000)
    parser.add_argument("--per-second", type=float, default=200)
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", arguments.port)) as server:
        print(f"Sales are at 127.0.0.1:{server.getsockname()[1]}.", flush=True)
        serve(server, sales(arguments.sales), arguments.per_second)


if __name__ == "__main__":
    main()
