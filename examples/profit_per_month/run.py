"""Run the sales server and the job, and write the job's output to profitPerMonthWindowed.txt."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from running_job import RunningJob  # noqa: E402  # found by the line above

RESULT = "profitPerMonthWindowed.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the sales server and the job.")
    parser.add_argument("--port", type=int, default=9181)
    parser.add_argument("--sales", type=int, default=2500)
    parser.add_argument("--per-second", type=float, default=100)
    parser.add_argument("--to", type=Path, default=Path(), help=f"the folder for {RESULT}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profit-per-month-") as name:
        folder = Path(name)
        server = subprocess.Popen(
            [
                *(sys.executable, str(HERE / "sales_server.py")),
                *("--port", str(arguments.port), "--sales", str(arguments.sales)),
                *("--per-second", str(arguments.per_second)),
            ]
        )
        try:
            rows = profits(folder, arguments.port, arguments.sales)
        finally:
            server.terminate()
            server.wait()
        letters = sum(len(path.read_text().splitlines()) for path in folder.glob("bad/*.jsonl"))
    result = arguments.to / RESULT
    result.write_text("\n".join(rows) + "\n")
    print(
        f"{len(rows) - 1} lines are in {result}, and {letters} lines of the server were not sales. The first ones:"
    )
    print("\n".join(rows[:8]))


def profits(folder: Path, port: int, sales: int) -> list[str]:
    """Return the lines that the job writes until its output covers all sales, with their header."""
    bindings = {
        "sales": f"socket://127.0.0.1:{port}",
        "profits": f"csv:{folder / 'profits'}",
        "dead-letters": f"jsonl:{folder / 'bad'}",
    }
    with RunningJob(HERE / "profit_job.py", folder, bindings=bindings) as job:
        while True:
            rows = read_csv(folder / "profits")
            if sum(int(row.split(",")[-1]) for row in rows[1:]) >= sales:
                return rows
            job.check()
            time.sleep(0.2)


def read_csv(folder: Path) -> list[str]:
    """Return the lines of all CSV files in a folder, with one header."""
    parts = [path.read_text().splitlines() for path in sorted(folder.glob("*.csv"))]
    return [*parts[0][:1], *(row for part in parts for row in part[1:])] if parts else []


if __name__ == "__main__":
    main()
