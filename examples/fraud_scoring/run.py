"""Score six days of payments while versions of the model come, are tried, serve, and one is rolled back by itself."""

import hashlib
import json
import pickle
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

from fraud_scoring.feed import write  # noqa: E402  # found by the line above
from fraud_scoring.train import train  # noqa: E402  # found by the line above
from running_job import PATIENCE_S, RunningJob  # noqa: E402  # found by the line above

Record = dict[str, Any]
DAYS = 6
ALARM_FROM = 0.5
MARKS = {"APPLIED": "green", "DEGRADED": "yellow", "REJECTED": "red"}


def main() -> None:
    console = Console(highlight=False, width=110)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fraud-scoring-") as name:
        folder = Path(name)
        models = folder / "models"
        models.mkdir()
        console.print("Training three versions ...")
        train(models)
        (models / "4.onnx").write_bytes(pickle.dumps({"anything": "that runs when it is loaded"}))
        fraud = write(folder / "feed", DAYS)
        job = RunningJob(
            HERE / "fraud_job.py", folder, streams=["payments"], sinks=["scores"], allow_read=models
        )
        console.print("Starting the job ...")
        with job:
            days = [play(job, models, number, console) for number in range(1, DAYS + 1)]
            receipts = job.receipts()
        console.print()
        console.print(days_table(days, fraud))
        console.print(receipts_table(receipts))
        console.print(f"\nOne job, never restarted, {time.monotonic() - began:.0f} s.")


def play(job: RunningJob, models: Path, number: int, console: Console) -> list[Record]:
    """Send the commands of a day, hand in its payments, and return their scores."""
    title, *commands = plan(models)[number - 1]
    if not commands:
        await_policy(job)
    for command in commands:
        job.send(command)
        job.settle()
        if command["kind"] == "load-model":
            await_examination(job, command["payload"]["version"])
    scores = job.play(job.folder / "feed" / str(number), ("payments",), "scores")
    versions = Counter(score["version"] or "none" for score in scores)
    by = ", ".join(f"{count} by {version}" for version, count in sorted(versions.items()))
    console.print(f"[bold]Day {number}[/]: {title}; {by}")
    return scores


def plan(models: Path) -> list[tuple[Any, ...]]:
    """Return what happens before each day."""
    return [
        ("version 1 serves", load(models, "1"), order("validate", "1"), order("promote", "1")),
        ("version 2 in the shadow", load(models, "2"), order("validate", "2"), order("shadow", "2")),
        ("version 2 for a fifth of the cards", order("canary", "2", share=0.2)),
        ("version 2 serves", order("promote", "2")),
        (
            "version 3 serves, which is bad, and version 4 is a pickle",
            load(models, "3"),
            order("validate", "3"),
            order("promote", "3"),
            load(models, "4"),
            order("validate", "4"),
        ),
        ("the policy has rolled back version 3",),
    ]


def await_examination(job: RunningJob, version: str) -> None:
    """Wait until the job has fetched and examined a version beside its work."""
    ends = time.monotonic() + PATIENCE_S
    while not any(found["version"] == version and found["is_examined"] for found in job.versions()):
        job.check()
        if time.monotonic() > ends:
            raise RuntimeError(f"The job has not examined version {version}.")


def await_policy(job: RunningJob) -> None:
    """Wait until the job has carried out a command of the model's policy."""
    ends = time.monotonic() + PATIENCE_S
    while not any(receipt["issued_by"] == "policy" for receipt in job.receipts()):
        job.check()
        if time.monotonic() > ends:
            raise RuntimeError("The policy has not rolled back the bad version.")
        time.sleep(0.05)


def order(kind: str, version: str | None = None, **more: Any) -> Record:
    """Return a command on a version of the model."""
    payload = {"model": "fraud", **({} if version is None else {"version": version}), **more}
    name = f"{kind}-{version}" if version else kind
    return {"id": name, "kind": f"{kind}-model", "target": {"step": "score"}, "payload": payload}


def load(models: Path, version: str) -> Record:
    """Return the command that loads a version, with its hash and its sample."""
    path = models / f"{version}.onnx"
    sample = path.with_suffix(".sample.json")
    more = {"sample": json.loads(sample.read_text())} if sample.exists() else {}
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return order("load", version, uri=str(path), sha256=sha256, format="onnx", **more)


def days_table(days: list[list[Record]], fraud: dict[int, list[int]]) -> Table:
    """Return a table with a picture: how much of the fraud each day's alarms found, and how many were false."""
    table = Table("day", "versions", "fraud", "found", "false alarms", title="Alarms", title_justify="left")
    for number, scores in enumerate(days, 1):
        guilty = set(fraud[number])
        alarms = {score["payment"] for score in scores if score["score"] >= ALARM_FROM}
        found, false = len(alarms & guilty), len(alarms - guilty)
        versions = " ".join(sorted({score["version"] for score in scores}))
        table.add_row(
            str(number),
            versions,
            str(len(guilty)),
            f"[green]{bar(found / len(guilty))}[/] {found / len(guilty):.0%}",
            f"[red]{bar(false / len(scores))}[/] {false}",
        )
    return table


def bar(share: float, width: int = 20) -> str:
    """Return a bar of that share of a width."""
    return "█" * round(share * width)


def receipts_table(receipts: list[Record]) -> Table:
    """Return a table of the outcome of each command."""
    table = Table("command", "status", "what changed, or why not", title="Receipts", title_justify="left")
    for receipt in receipts:
        versions = json.loads(receipt.get("details") or "{}").get("versions", {})
        changed = ", ".join(f"{version} is {status}" for version, status in versions.items())
        colour = MARKS[receipt["status"]]
        said = receipt.get("reason") or changed
        table.add_row(receipt["id"], f"[{colour}]{receipt['status']}[/]", said)
    return table


if __name__ == "__main__":
    main()
