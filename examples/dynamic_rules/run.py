"""Run the job on four hours of payments, change its rules before each hour, and show the alerts and receipts."""

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from dynamic_rules.feed import STAGES, write  # noqa: E402  # found by the line above
from running_job import RunningJob  # noqa: E402  # found by the line above

Record = dict[str, Any]
MARKS = {"APPLIED": "green", "DEGRADED": "yellow", "REJECTED": "red"}


def main() -> None:
    console = Console(highlight=False, width=110)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dynamic-rules-") as name:
        folder = Path(name)
        write(folder / "feed")
        job = RunningJob(HERE / "rules_job.py", folder, streams=["payments", "rules"], sinks=["alerts"])
        console.print("Starting the job ...")
        with job:
            hours = [play(job, number, console) for number in range(1, len(STAGES) + 1)]
            receipts = job.receipts()
        console.print()
        console.print(alerts_table(hours))
        console.print(receipts_table(receipts))
        console.print("\nIn force at the end, as the job replies to list-rules:")
        for rule in find_reply(receipts, "list-rules"):
            console.print(f"  {rule['name']} v{rule['version']}: {rule['measure']} over {rule['threshold']}")
        console.print(f"\nOne job, never restarted, {time.monotonic() - began:.0f} s.")


def play(job: RunningJob, number: int, console: Console) -> list[Record]:
    """Change the rules, hand in an hour of payments, and return the alerts of that hour."""
    alerts = job.play(job.folder / "feed" / str(number), ("rules", "commands", "payments"), "alerts")
    console.print(f"[bold]Hour {number}[/]: {STAGES[number - 1].title}; [bold]{len(alerts)}[/] alerts")
    for alert in alerts[:1]:
        console.print(f"  [dim]{alert['account']} {alert['rule']}: {alert['why']}; {alert['action']}[/]")
    return alerts


def alerts_table(hours: list[list[Record]]) -> Table:
    """Return a table of the number of alerts of each rule in each hour, by version."""
    table = Table("rule", title="Alerts by the rules that were in force", title_justify="left")
    for number, alerts in enumerate(hours, 1):
        versions = sorted({alert["control_version"] for alert in alerts})
        table.add_column(f"hour {number}\n[dim]control {', '.join(map(str, versions))}[/]", justify="right")
    for rule in sorted({alert["rule"] for alerts in hours for alert in alerts}):
        cells = []
        for alerts in hours:
            found = Counter(alert["rule_version"] for alert in alerts if alert["rule"] == rule)
            cells.append(", ".join(f"{n} [dim]v{version}[/]" for version, n in found.items()) or "-")
        table.add_row(rule, *cells)
    return table


def receipts_table(receipts: list[Record]) -> Table:
    """Return a table of the outcome of each command."""
    table = Table("command", "status", "keys", "reason", title="Receipts", title_justify="left")
    for receipt in receipts:
        colour = MARKS[receipt["status"]]
        keys = str(receipt.get("keys") or "")
        table.add_row(receipt["id"], f"[{colour}]{receipt['status']}[/]", keys, receipt.get("reason", ""))
    return table


def find_reply(receipts: list[Record], kind: str) -> Any:
    """Return the job's reply to the command of a kind."""
    (receipt,) = (one for one in receipts if one["kind"] == kind)
    return json.loads(receipt["details"])


if __name__ == "__main__":
    main()
