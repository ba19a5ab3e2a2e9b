"""Run the job on the clicks of a morning, hour by hour, and show the users' sessions and the late clicks."""

import datetime as dt
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from running_job import Record, read, run_bounded  # noqa: E402  # found by the line above
from sessions.feed import write  # noqa: E402  # found by the line above

USERS = ("U00", "U01")


def main() -> None:
    console = Console(highlight=False, width=110)
    with tempfile.TemporaryDirectory(prefix="sessions-") as name:
        folder = Path(name)
        write(folder / "clicks")
        console.print("Running the job ...")
        places = {name: f"jsonl:{folder / name}" for name in ("sessions", "late")}
        # Which clicks are late depends on the previous micro-batches.
        clicks = f"jsonl:{folder / 'clicks'}?max_files_per_batch=1"
        run_bounded(HERE / "sessions_job.py", {"clicks": clicks, **places})
        sessions, late = read(folder / "sessions"), read(folder / "late")
    for user in USERS:
        console.print(sessions_table(user, [one for one in sessions if one["user"] == user]))
    clicks_in = sum(one["clicks"] for one in sessions)
    console.print(f"{len(sessions)} sessions with {clicks_in} clicks; {len(late)} clicks came too late:")
    for one in late[:3]:
        console.print(f"  {one['user']} {one['page']} at {clock(one['at'])}")


def sessions_table(user: str, sessions: list[Record]) -> Table:
    """Return a table of the sessions of a user, in order."""
    table = Table("from", "to", "clicks", "pages", title=f"Sessions of {user}", title_justify="left")
    for one in sorted(sessions, key=lambda one: str(one["start"])):
        table.add_row(clock(one["start"]), clock(one["end"]), str(one["clicks"]), ", ".join(one["pages"]))
    return table


def clock(at: str) -> str:
    return f"{dt.datetime.fromisoformat(at):%H:%M:%S}"


if __name__ == "__main__":
    main()
