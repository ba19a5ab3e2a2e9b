"""Run both jobs on a day of the shop, and show what was paid late or never, and what clicks cost."""

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from running_job import read, run_bounded  # noqa: E402  # found by the line above
from shop_joins.feed import write  # noqa: E402  # found by the line above


def main() -> None:
    console = Console(highlight=False, width=110)
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        folder = Path(name)
        write(folder)
        console.print("Joining orders with payments, and clicks with campaigns ...")
        for job, streams in (
            ("payments.sql", ("orders", "payments", "paid", "unpaid")),
            ("clicks.sql", ("clicks", "campaigns", "charged")),
        ):
            run_bounded(HERE / job, {stream: f"jsonl:{folder / stream}" for stream in streams})
        paid, unpaid = read(folder / "paid"), read(folder / "unpaid")
        charged = read(folder / "charged")
    shown = Table("what", "how many", "sum", title="A day of the shop", title_justify="left")
    shown.add_row("orders paid within an hour", str(len(paid)), f"{sum(one['amount'] for one in paid):.2f}")
    shown.add_row("orders not paid by then", str(len(unpaid)), f"{sum(one['amount'] for one in unpaid):.2f}")
    priced = [one for one in charged if one["price"] is not None]
    shown.add_row("clicks of campaigns", str(len(priced)), f"{sum(one['price'] for one in priced):.2f}")
    shown.add_row("other clicks", str(len(charged) - len(priced)), "")
    console.print(shown)


if __name__ == "__main__":
    main()
