"""Lines of text: `python feed.py FOLDER` writes files of them, `python feed.py --port 9182` sends them to a client."""

import argparse
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from line_server import serve  # found by the line above

# Each word is less frequent than the one before it.
TEXT = "the river and water of a gate lets flow wheel turns mill sluice rises falls slowly by night stone miller waits"
WORDS = TEXT.split()
FREQUENCIES = [1 / place for place in range(1, len(WORDS) + 1)]


def lines(count: int, seed: int = 1) -> Iterator[str]:
    """Yield `count` lines, always the same for a seed."""
    numbers = random.Random(seed)
    for _ in range(count):
        words = numbers.choices(WORDS, FREQUENCIES, k=numbers.randint(3, 9))
        yield " ".join(words).capitalize() + "."


def write(folder: Path, files: int = 3, count: int = 200) -> None:
    """Write files with a fixed number of lines each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, files + 1):
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines(count, number)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write lines of text into a folder, or send them to a client."
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--port", type=int, default=9182)
    parser.add_argument("--lines", type=int, default=600)
    parser.add_argument("--per-second", type=float, default=20)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        write(arguments.folder)
        return
    with socket.create_server(("127.0.0.1", arguments.port)) as server:
        print(f"Lines are at 127.0.0.1:{arguments.port}.", flush=True)
        serve(server, lines(arguments.lines), arguments.per_second)


if __name__ == "__main__":
    main()
