"""Soak: the resources that a job uses over a long time, and whether they grow.

For a given time, the temperature-control job reads a file of readings and takes one command at a time. Before that it
gets as many commands as it may remember, and it keeps few receipts and metrics and little of its log, so that all
bounded data has reached its bound. Throughout, the soak records the job's resources (memory of driver, JVM and workers,
their open files, the size and the files of the checkpoint), the CPU time of all processes for a micro-batch, and the
durations of micro-batches and commands. It compares the median of the last tenth of the time with that of the second
tenth; of open files it compares the smallest number, since a micro-batch opens some while it commits. Micro-batches
come at a fixed interval, because Spark's maintenance comes once a minute: faster ones would leave it more files to
remove. A fixed piece of work is timed throughout as well, since the speed of a shared machine varies; the growth of a
time is relative to it. Inputs that were read and outputs are deleted, as the job's owner would do; every command must
be applied.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.processes import Background, TreeUsage
from benchmarks.report import print_table
from benchmarks.running import RunningJob
from benchmarks.workload import Rooms
from penstock.bindings.parse import parse_binding
from penstock.commands.command_sender import send_command
from penstock.commands.receipt_history import await_end
from penstock.commands.receipt_segments import NewReceipts
from penstock.control.commands import Command, Target
from penstock.metrics.batch_metrics import BatchMetricsTail
from penstock.streams.graph import COMMANDS

__all__ = ["LIMIT_PERCENT", "Series", "Sizes", "growth", "main", "measure"]

LIMIT_PERCENT: Final = 5.0
"""By how much of what it was in the second tenth of the time anything may grow until the last."""

_Typical: TypeAlias = Callable[[list[float]], float]

_TYPICAL: Final[dict[str, _Typical]] = {"open_files": min}
_TIMES: Final = ("cpu_ms", "batch_ms", "command_ms")
_FIXED_NUMBERS: Final = np.random.default_rng(1).permutation(200_000)
_FIXED_TEXT: Final = msgspec.json.encode([{"number": n, "text": f"a text {n}"} for n in range(10_000)])
_KEEP_S: Final = 10.0
_ANSWER_S: Final = 60.0
_UNITS: Final = {
    "memory_mb": "memory, MB",
    "open_files": "files that the JVM keeps open",
    "checkpoint_mb": "checkpoint, MB",
    "checkpoint_files": "files in the checkpoint",
    "fixed_work_ms": "CPU time of a fixed piece of work, for comparison, ms",
    "cpu_ms": "CPU time of all processes for each micro-batch, ms",
    "batch_ms": "micro-batch, ms",
    "command_ms": "command, from sending to its receipt, ms",
}


@dataclass(frozen=True)
class Sizes:
    """The duration and the load of the job."""

    seconds: int = option(3600, "how long the job is observed; default: %(default)s")
    keys: int = 10_000
    rows: int = option(2_000, "readings in each file; default: %(default)s")
    period_s: float = option(0.5, "time between two files, and between two commands; default: %(default)s")
    interval_ms: int = option(1_000, "time between two micro-batches; default: %(default)s")
    remembered: int = option(110_000, "commands before the clock starts; default: %(default)s")
    samples: int = option(200, "how often memory, files and disk are sampled; default: %(default)s")
    part: float = option(
        0.1, "the part of the time to compare, the second with the last; default: %(default)s"
    )
    cores: int = 2


@dataclass
class Series:
    """Values over the time of the soak, which goes from 0 to 1."""

    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at: float, value: float) -> None:
        """Record one value."""
        self.at.append(at)
        self.values.append(value)

    def within(self, begin: float, end: float) -> list[float]:
        """Return the values recorded within a part of the time.

        If there are none, it is the next value, which a slow machine was measuring then, or else the last one.
        """
        if not self.values:
            raise RuntimeError("The soak is too short: nothing was measured. Give it more --seconds.")
        recorded = list(zip(self.at, self.values, strict=True))
        within = [value for at, value in recorded if begin <= at <= end]
        later = (value for at, value in recorded if at > end)
        return within or [next(later, self.values[-1])]


def growth(
    series: Series, part: float = 0.1, typical: _Typical = statistics.median
) -> tuple[float, float, float]:
    """Return the typical values of the second and the last tenth, and by how many percent the latter is larger."""
    early, late = _compared(series, part, typical)
    return early, late, (late / early - 1) * 100


def _compared(series: Series, part: float, typical: _Typical = statistics.median) -> tuple[float, float]:
    return typical(series.within(part, 2 * part)), typical(series.within(1 - part, 1.0))


class _Clock:
    """The progress of the soak in time."""

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._begin_s: Final = time.monotonic()
        self.begin: Final = time.time()

    def part(self) -> float:
        """Return the elapsed fraction of the time, from 0 to 1 and beyond."""
        return (time.monotonic() - self._begin_s) / self._seconds

    def part_at(self, time_s: float) -> float:
        """Return the elapsed fraction at a time of the wall clock."""
        return (time_s - self.begin) / self._seconds


class _Usage(Background):
    """A recorder that samples the resources of a job; a context manager."""

    def __init__(self, job: RunningJob, clock: _Clock, interval_s: float, batches: Callable[[], int]) -> None:
        super().__init__()
        self._job: Final = job
        self._batches: Final = batches
        self._clock: Final = clock
        self._interval_s: Final = interval_s
        self.series: Final = {
            name: Series()
            for name in (
                "memory_mb",
                "open_files",
                "checkpoint_mb",
                "checkpoint_files",
                "fixed_work_ms",
                "cpu_ms",
            )
        }
        self.folders: Final[list[tuple[float, Counter[str]]]] = []

    def run(self) -> None:
        """Sample until the end."""
        cpu_s, batches = TreeUsage.of(self._job.pid).cpu_s, self._batches()
        while not self.ended.wait(self._interval_s):
            at = self._clock.part()
            used = TreeUsage.of(self._job.pid)
            sizes, files = _sizes_of(self._job.checkpoint)
            self.series["memory_mb"].add(at, used.memory_bytes / (1 << 20))
            self.series["open_files"].add(at, used.open_files)
            self.series["checkpoint_mb"].add(at, sum(sizes.values()) / (1 << 20))
            self.series["checkpoint_files"].add(at, files)
            self.series["fixed_work_ms"].add(at, _fixed_work_ms())
            self.folders.append((at, sizes))
            done = self._batches()
            if done > batches:
                self.series["cpu_ms"].add(at, (used.cpu_s - cpu_s) * 1000 / (done - batches))
                cpu_s, batches = used.cpu_s, done


def _fixed_work_ms() -> float:
    """Return the CPU time of a fixed piece of work, which shows the current speed of the machine."""
    begin_s = time.thread_time()
    for _ in range(3):
        np.sort(_FIXED_NUMBERS)
        msgspec.json.decode(_FIXED_TEXT)
    return (time.thread_time() - begin_s) * 1000


def _sizes_of(folder: Path) -> tuple[Counter[str], int]:
    """Return the bytes in each folder and file of a folder, and the number of all files; files may come and go."""
    sizes: Counter[str] = Counter()
    files = 0
    for parent, _, names in os.walk(folder):
        inside = Path(parent).relative_to(folder).parts
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(os.path.join(parent, name)).st_size  # noqa: PTH116, PTH118  # thousands of files
                # A file that is about to replace another one has a new name each time.
                sizes[inside[0] if inside else ".*" if name.startswith(".") else name] += size
                files += 1
    return sizes, files


class _Feed(Background):
    """A feed of one file of readings per period, which also records the micro-batch durations; a context manager.

    Files that were read in committed micro-batches are deleted, and so are outputs after some seconds.
    """

    def __init__(self, folder: Path, sizes: Sizes, metrics: BatchMetricsTail, clock: _Clock) -> None:
        super().__init__()
        self._folder: Final = folder
        self._sizes: Final = sizes
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._oldest = 1
        self.batch_ms: Final = Series()

    def run(self) -> None:
        """Feed until the end."""
        number = 1
        while not self.ended.wait(self._sizes.period_s):
            _offer(self._folder, number)
            number += 1
            for metrics in self._metrics.read():
                self.batch_ms.add(self._clock.part_at(metrics.ended.timestamp()), metrics.busy_s * 1000)
                self._delete_read(metrics.totals.records_in.get("readings", 0) // self._sizes.rows)
            _delete_outputs(self._folder / "heaters")

    def _delete_read(self, files: int) -> None:
        """Delete the oldest files of readings, except the newest one read, up to a number counted since the start."""
        for number in range(self._oldest, files - 1):
            _reading_file(self._folder, number).unlink()
            self._oldest = number + 1


def _reading_file(folder: Path, number: int) -> Path:
    return folder / "readings" / f"{number:09d}.parquet"


def _offer(folder: Path, number: int) -> None:
    """Give the job another file of readings: the same one under a new name."""
    os.link(folder / "one.parquet", _reading_file(folder, number))


def _delete_outputs(folder: Path) -> None:
    limit_s = time.time() - _KEEP_S
    for path in folder.glob("part-*.parquet"):
        if path.stat().st_mtime < limit_s:
            path.unlink()


def _make_inputs(folder: Path, sizes: Sizes) -> None:
    """Write a file with a setting for each sensor, and one with readings, which is offered repeatedly."""
    rooms = Rooms(sizes.keys, 0.45)
    for name in ("readings", "settings", "heaters"):
        (folder / name).mkdir(parents=True)
    pq.write_table(rooms.settings(), folder / "settings" / "0.parquet")
    pq.write_table(rooms.readings(sizes.rows, 0).table(), folder / "one.parquet")
    _offer(folder, 0)


class _Commands:
    """A sender of commands to a job, one at a time, which waits until each is applied."""

    def __init__(self, job: RunningJob, keys: int) -> None:
        self._checkpoint: Final = job.checkpoint
        self._binding: Final = parse_binding(COMMANDS, f"jsonl:{job.checkpoint / 'commands'}", "control")
        self._keys: Final = keys
        self._sent = 0

    def _next(self) -> Command:
        number = self._sent
        self._sent += 1
        value = msgspec.Raw(msgspec.json.encode({"last_command": ("ON", "OFF")[number % 2]}))
        target = Target(step="thermostat", key=number * 7919 % self._keys)
        return Command(id=f"c{number}", kind="set", target=target, payload=value)

    def send_many(self, count: int) -> None:
        """Send commands in one file, and wait for the last one."""
        commands = [self._next() for _ in range(count)]
        new = NewReceipts(self._checkpoint)
        hidden = self._checkpoint / "commands" / ".many"
        hidden.write_bytes(b"".join(msgspec.json.encode(command) + b"\n" for command in commands))
        hidden.rename(hidden.with_name("00-many.jsonl"))
        self._await(new, commands[-1])

    def send_one(self) -> float:
        """Send one command, and return the seconds until its final receipt exists."""
        command = self._next()
        new = NewReceipts(self._checkpoint)
        begin_s = time.monotonic()
        send_command(command, self._binding)
        self._await(new, command)
        return time.monotonic() - begin_s

    def _await(self, new: NewReceipts, command: Command) -> None:
        final = await_end(new, command.id, _ANSWER_S, lambda _: None)
        if final is None or final.status != "APPLIED":
            raise RuntimeError(f"The command {command.id} was not applied within {_ANSWER_S:.0f} s: {final}")


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Run the job for the given time, and compare the last tenth with the second. Every command must be applied."""
    _make_inputs(work, sizes)
    bindings = {name: f"parquet:{work / name}" for name in ("readings", "settings", "heaters")}
    options = ["--master", f"local[{sizes.cores}]", "--batch-interval", str(sizes.interval_ms), "-o", "json"]
    bounds = ["--receipts-mb", "1", "--metrics-mb", "1", "--log-mb", "1"]
    job = RunningJob(work, bindings, [*options, *bounds], ("penstock.cli", "run"))
    try:
        job.await_true("its first micro-batch", lambda: len(batch_ends(job.checkpoint)) >= 1)
        commands = _Commands(job, sizes.keys)
        if sizes.remembered:
            commands.send_many(sizes.remembered)
        clock = _Clock(sizes.seconds)
        command_ms = Series()
        feed = _Feed(work, sizes, BatchMetricsTail(job.checkpoint), clock)
        usage = _Usage(job, clock, sizes.seconds / sizes.samples, lambda: len(feed.batch_ms.values))
        with feed, usage:
            while clock.part() < 1:
                at_s = time.monotonic()
                took_s = commands.send_one()
                command_ms.add(clock.part(), took_s * 1000)
                time.sleep(max(0.0, at_s + sizes.period_s - time.monotonic()))
    finally:
        summary = job.end()
    if summary["status"] != "stopped":
        raise RuntimeError(f"The job was to run until it is stopped, but it has {summary['status']}.")
    series = {**usage.series, "batch_ms": feed.batch_ms, "command_ms": command_ms}
    found = {
        name: growth(one, sizes.part, _TYPICAL.get(name, statistics.median)) for name, one in series.items()
    }
    early, late, _ = found["fixed_work_ms"]
    percents = {name: percent for name, (_, _, percent) in found.items()}
    for name in _TIMES:
        percents[name] = ((1 + percents[name] / 100) * early / late - 1) * 100
    return {
        "seconds": sizes.seconds,
        "commands": len(command_ms.values),
        "records": sum(summary["records_in"].values()),
        "batches": len(feed.batch_ms.values),
        "early": {name: round(early, 2) for name, (early, _, _) in found.items()},
        "late": {name: round(late, 2) for name, (_, late, _) in found.items()},
        "units": _UNITS,
        "growth_percent": {name: round(percent, 1) for name, percent in percents.items()},
        "checkpoint_folders_mb": _by_folder(usage.folders, sizes.part),
    }


def _by_folder(seen: list[tuple[float, Counter[str]]], part: float) -> dict[str, tuple[float, float]]:
    """Return the size of each folder of the checkpoint in the second and the last tenth, largest growth first."""
    found = {}
    for name in sorted({name for _, sizes in seen for name in sizes}):
        series = Series([at for at, _ in seen], [sizes[name] / (1 << 20) for _, sizes in seen])
        early, late = _compared(series, part)
        found[name] = (round(early, 2), round(late, 2))
    return dict(sorted(found.items(), key=lambda item: item[1][0] - item[1][1]))


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    title = (
        f"{result['seconds']:,} s: {result['records']:,} records, {result['batches']:,} micro-batches, "
        f"{result['commands']:,} commands"
    )
    rows = [
        [
            unit,
            f"{result['early'][name]:,.1f}",
            f"{result['late'][name]:,.1f}",
            f"{result['growth_percent'][name]:+.1f} %",
        ]
        for name, unit in _UNITS.items()
    ]
    columns = ("", "second tenth", "last tenth", "growth")
    print_table(title, columns, rows, left=("",))
    folders = [
        [name, f"{early:,.2f}", f"{late:,.2f}", f"{late - early:+.2f} MB"]
        for name, (early, late) in result["checkpoint_folders_mb"].items()
    ]
    print_table("The checkpoint by folder, MB", columns, folders, left=("",))


def main() -> int:
    """Measure and print; the exit code is 1 if anything has grown by more than the limit."""
    result = run_command(Sizes, measure, show)
    grown = {
        name: percent
        for name, percent in result["growth_percent"].items()
        if percent > LIMIT_PERCENT and name != "fixed_work_ms"
    }
    for name, percent in grown.items():
        print(f"{_UNITS[name]} grew by {percent} %, more than {LIMIT_PERCENT:.0f} %.", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
