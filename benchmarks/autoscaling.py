"""Autoscaling: a load rises fourfold and falls again, and a managed job follows it by itself.

`penstock serve` manages a job whose records each wait for a service, simulated by waiting (benchmarks/waiting_job.py),
so that more tasks also help on a machine with few cores. Orders arrive as files, two a second. The job's definition has
a scaling policy with short times, so that the whole run takes minutes; the benchmark only writes files.

Lag is that of the job's metrics: how long the oldest waiting order had been waiting when a micro-batch ended. Its level
is the highest in the second half of the time before the rise. In the last quarter of the time at the top, and of the
time after the fall, lag must be back at that level, or below one interval of micro-batches. Every order must be priced
once.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import json
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.chart import Panel, draw_chart
from benchmarks.command import option, run_command
from benchmarks.processes import Background, end_session, python_process
from benchmarks.report import note, print_table
from penstock.client.discovery import find_server
from penstock.client.http import Server
from penstock.errors import PenstockError
from penstock.metrics.batch_metrics import BatchMetrics, read_batch_metrics

__all__ = ["Sizes", "main", "measure", "show"]

_FILES_PER_S: Final = 2
_CUSTOMERS: Final = 1000
_PATIENCE_S: Final = 180.0
_DEFINITION: Final = """
job: waiting_job.py
bindings:
  orders: jsonl:{orders}?max_files_per_batch=20
  priced: jsonl:{priced}
parallelism: 1
batch_interval: 2s
master: {master}
scaling:
  max_tasks: {max_tasks}
  window: {window_s}s
  scale_in_after: {scale_in_after_s}s
  cool_down: {cool_down_s}s
  longest_lag: 15s
  catch_up: 1m
"""


@dataclass(frozen=True)
class Sizes:
    """The load, and the times of the policy."""

    per_s: int = option(100, "orders per second before the rise; one task does at most 250")
    rise: int = option(4, "how many times as many at the top")
    before_s: int = option(90, "seconds before the rise")
    top_s: int = option(240, "seconds at the top")
    after_s: int = option(240, "seconds after the fall")
    window_s: int = 20
    scale_in_after_s: int = 60
    cool_down_s: int = 45
    max_tasks: int = 8
    master: str = option("local[8]", "eight waiting tasks do not need eight cores")
    picture: str = option("", "a file for a chart of the run, as SVG")


class _Feed(Background):
    """A feed that writes orders at the current load, and remembers the times."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        super().__init__()
        self._folder = folder
        self._sizes = sizes
        self.begun = dt.datetime.now(dt.UTC)
        self.orders = 0

    def per_s(self, seconds: float) -> int:
        sizes = self._sizes
        is_high = sizes.before_s <= seconds < sizes.before_s + sizes.top_s
        return sizes.per_s * (sizes.rise if is_high else 1)

    def run(self) -> None:
        self.begun = dt.datetime.now(dt.UTC)
        start = time.monotonic()
        file = 0
        while not self.ended.is_set():
            count = self.per_s(time.monotonic() - start) // _FILES_PER_S
            lines = [
                json.dumps({"customer": number * 7919 % _CUSTOMERS, "number": number})
                for number in range(self.orders, self.orders + count)
            ]
            path = self._folder / f"{file:08}.jsonl"
            hidden = path.with_name(f".{path.name}")
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(path)
            self.orders += count
            file += 1
            self.ended.wait(max(0.0, start + file / _FILES_PER_S - time.monotonic()))


@contextlib.contextmanager
def _serving(home: Path, definitions: Path) -> Iterator[Server]:
    """Run `penstock serve` in its own process, and yield a connection to it."""
    log = home.with_name("serve.log")
    options = ["--bind", "127.0.0.1:0", "--jobs", str(definitions), "--home", str(home), "-o", "json"]
    process = python_process("penstock.cli", ["serve", *options], log)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"penstock serve did not start: {log.read_text()[-2000:]}")
        with Server(find_server(None, home, None, {})) as server:
            yield server
    finally:
        process.send_signal(signal.SIGTERM)
        end_session(process)


def _await_status(server: Server, job: str, status: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (found := server.get(f"/v1/jobs/{job}"))["status"] != status:
        if found["status"] == "FAILED" or time.monotonic() > deadline:
            raise RuntimeError(f"The job is {found['status']}: {found['reason']}")
        time.sleep(0.5)


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Run the load once. Raises RuntimeError if the job fails, or an order was not priced exactly once."""
    orders, priced, definitions = (work / name for name in ("orders", "priced", "definitions"))
    for folder in (orders, priced, definitions):
        folder.mkdir()
    shutil.copy(Path(__file__).with_name("waiting_job.py"), definitions)
    values = {
        name: getattr(sizes, name)
        for name in ("master", "max_tasks", "window_s", "scale_in_after_s", "cool_down_s")
    }
    (definitions / "pricing.yaml").write_text(_DEFINITION.format(orders=orders, priced=priced, **values))
    feed = _Feed(orders, sizes)
    with _serving(work / "home", definitions) as server:
        job = server.change("POST", "/v1/jobs", {"definition": "pricing"})["job"]
        try:
            _await_status(server, job, "RUNNING")
            with feed:
                _wait(sizes)
            # Everything that was sent is priced before the job ends.
            server.change("PATCH", f"/v1/jobs/{job}", {"desired": "FINISHED", "drain": True})
            _await_status(server, job, "FINISHED")
        except BaseException:
            with contextlib.suppress(PenstockError):
                server.change("PATCH", f"/v1/jobs/{job}", {"desired": "CANCELED"})
                _await_status(server, job, "CANCELED")
            raise
        operations = [
            server.get(f"/v1/operations/{event['detail']['operation']}")
            for event in server.events(job=job)
            if event["what"] == "asked for: rescale"
        ]
    metrics = read_batch_metrics(work / "home" / "jobs" / job / "checkpoint", since=feed.begun)
    _check(priced, feed.orders)
    result = _result(sizes, feed, metrics, operations)
    if sizes.picture:
        Path(sizes.picture).write_text(_picture(result), encoding="utf-8")
    return result


def _wait(sizes: Sizes) -> None:
    for name, seconds in (
        ("before the rise", sizes.before_s),
        ("at the top", sizes.top_s),
        ("after the fall", sizes.after_s),
    ):
        note(f"{seconds} s {name}")
        time.sleep(seconds)


def _check(priced: Path, sent: int) -> None:
    """Check that every order was priced once, and that each customer's orders were counted in sequence."""
    found = [
        json.loads(line) for path in sorted(priced.glob("part-*")) for line in path.read_text().splitlines()
    ]
    counts = collections.Counter(record["number"] for record in found)
    wrong = sum(counts[number] != 1 for number in range(sent)) + len(counts.keys() - set(range(sent)))
    by_customer = collections.defaultdict(list)
    for record in found:
        by_customer[record["customer"]].append(record["orders"])
    miscounted = sum(sorted(seen) != list(range(1, len(seen) + 1)) for seen in by_customer.values())
    if wrong or miscounted:
        raise RuntimeError(f"{wrong} orders were lost or priced twice, {miscounted} customers miscounted.")


def _result(sizes: Sizes, feed: _Feed, metrics: list[BatchMetrics], operations: list[Any]) -> dict[str, Any]:
    end_s = sizes.before_s + sizes.top_s + sizes.after_s
    samples = [
        {
            "s": round((found.ended - feed.begun).total_seconds(), 1),
            "tasks": found.parallelism,
            "lag_s": found.lag["orders"].seconds or 0.0,
            "batch_s": round(found.busy_s, 2),
        }
        for found in metrics
        if "orders" in found.lag and (found.ended - feed.begun).total_seconds() < end_s
    ]
    rescales = [
        {
            "s": round(operation["ended_ms"] / 1000 - feed.begun.timestamp(), 1),
            "before": operation["arguments"]["before"],
            "after": operation["result"]["after"],
            "downtime_s": operation["result"]["downtime_s"],
            "by": operation["created_by"],
            "why": operation["arguments"]["reason"],
        }
        for operation in operations
    ]

    def highest(start_s: float, stop_s: float) -> float:
        return max((one["lag_s"] for one in samples if start_s <= one["s"] < stop_s), default=0.0)

    top_s, fall_s = sizes.before_s, sizes.before_s + sizes.top_s
    return {
        "orders": feed.orders,
        "per_s": [sizes.per_s, sizes.per_s * sizes.rise],
        "lag_before_s": highest(sizes.before_s / 2, top_s),
        "lag_highest_s": highest(top_s, end_s),
        "lag_top_s": highest(fall_s - sizes.top_s / 4, fall_s),
        "lag_after_s": highest(end_s - sizes.after_s / 4, end_s),
        "rescales": rescales,
        "downtime_s": round(sum(one["downtime_s"] for one in rescales), 2),
        "load": [
            [0, sizes.per_s],
            [top_s, sizes.per_s * sizes.rise],
            [fall_s, sizes.per_s],
            [end_s, sizes.per_s],
        ],
        "samples": samples,
    }


def _picture(result: dict[str, Any]) -> str:
    samples = result["samples"]
    return draw_chart(
        "A load that rises fourfold and falls again",
        [
            Panel("orders per second", [(s, v) for s, v in result["load"]], steps=True),
            Panel("tasks", [(one["s"], one["tasks"]) for one in samples], steps=True),
            Panel("lag in seconds", [(one["s"], one["lag_s"]) for one in samples]),
        ],
        marks=[(one["s"], f"{one['before']} to {one['after']}") for one in result["rescales"]],
        end_s=result["load"][-1][0],
    )


def show(result: dict[str, Any]) -> None:
    """Print the rescales and the lag."""
    print_table(
        f"Autoscaling, {result['orders']:,} orders, {result['per_s'][0]} to {result['per_s'][1]} per second",
        ("s", "tasks", "downtime s", "why"),
        [
            [f"{one['s']:.0f}", f"{one['before']} to {one['after']}", f"{one['downtime_s']:.1f}", one["why"]]
            for one in result["rescales"]
        ],
        left=("why",),
    )
    print(
        f"Lag: {result['lag_before_s']:.1f} s before, {result['lag_highest_s']:.1f} s at most, "
        f"{result['lag_top_s']:.1f} s at the top, {result['lag_after_s']:.1f} s after. "
        f"{len(result['rescales'])} rescales, during which the job paused for {result['downtime_s']:.1f} s."
    )


def main() -> None:
    """Measure, print a table, and with --json the result as the last line."""
    result = run_command(Sizes, measure, show)
    problem = complaint(result)
    if problem:
        raise SystemExit(problem)


def complaint(result: dict[str, Any]) -> str:
    """Return what went wrong; empty if nothing did."""
    level_s = max(result["lag_before_s"], 2.0) * 1.5
    if not 1 <= len(result["rescales"]) <= 4:
        return f"There were {len(result['rescales'])} rescales."
    if max(result["lag_top_s"], result["lag_after_s"]) > level_s:
        return f"Lag did not return to its level, at most {level_s:.1f} s."
    return ""


if __name__ == "__main__":
    main()
