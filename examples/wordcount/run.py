"""Count the words of a folder of text, in Python and in SQL, then those of incoming lines over five seconds."""

import datetime as dt
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from line_server import serve  # noqa: E402  # found by the line above
from running_job import RunningJob, read, run_bounded  # noqa: E402  # found by the line above
from wordcount.feed import lines, write  # noqa: E402  # found by the line above

Record = dict[str, Any]
LINES = 500
PER_SECOND = 20.0
SHOWN = 4
LAST_WINDOWS = 10


def main() -> None:
    console = Console(highlight=False, width=110)
    with tempfile.TemporaryDirectory(prefix="wordcount-") as name:
        folder = Path(name)
        write(folder / "text")
        console.print("Counting the words of a folder of text ...")
        counts = folder / "counts"
        run_bounded(HERE / "batch_job.py", {"lines": f"text:{folder / 'text'}", "counts": f"jsonl:{counts}"})
        console.print(counts_table(read(counts)))
        in_sql = folder / "sql-counts"
        run_bounded(HERE / "wordcount.sql", {"lines": f"text:{folder / 'text'}", "counts": f"jsonl:{in_sql}"})
        same = {one["word"]: one["count"] for one in read(in_sql)} == {
            one["word"]: one["count"] for one in read(counts)
        }
        console.print(f"The counts of wordcount.sql are {'the same' if same else 'others'}.")
        console.print("\nCounting the words of lines that come in ...")
        console.print(windows_table(from_socket(folder / "windowed")))


def from_socket(folder: Path) -> list[Record]:
    """Return the counts of lines that a server sends for half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"socket://127.0.0.1:{server.getsockname()[1]}"
        sending = threading.Thread(
            target=serve, args=(server, lines(LINES), PER_SECOND), name="server", daemon=True
        )
        sending.start()
        job = RunningJob(HERE / "windowed_job.py", folder, sinks=["counts"], bindings={"lines": place})
        with job:
            while sending.is_alive():
                job.check()
                time.sleep(0.1)
            # The job reconnects after the connection has closed, although nothing more will come.
            over = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3)
            while not any(end(one) >= over for one in read(folder / "counts")):
                job.check()
                time.sleep(0.1)
        return read(folder / "counts")


def end(count: Record) -> dt.datetime:
    return dt.datetime.fromisoformat(count["window_end"])


def counts_table(counts: list[Record]) -> Table:
    """Return a table of the most frequent words."""
    table = Table("word", "count", title="All of the text", title_justify="left")
    for one in sorted(counts, key=lambda one: (-one["count"], one["word"]))[:SHOWN]:
        table.add_row(one["word"], str(one["count"]))
    return table


def windows_table(counts: list[Record]) -> Table:
    """Return a table of the most frequent words of each of the last windows."""
    table = Table("five seconds up to", "words", "most frequent", title="Every second", title_justify="left")
    windows: dict[dt.datetime, Counter[str]] = {}
    for one in counts:
        windows.setdefault(end(one), Counter())[one["word"]] = one["count"]
    for at, found in sorted(windows.items())[-LAST_WINDOWS:]:
        shown = ", ".join(f"{word} {count}" for word, count in found.most_common(SHOWN))
        table.add_row(f"{at:%H:%M:%S}", str(found.total()), shown)
    return table


if __name__ == "__main__":
    main()
