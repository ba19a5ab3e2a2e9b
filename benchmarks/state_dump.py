"""State dump: how long a dump of a large state takes, and what it costs the running job.

The temperature-control job holds a setting for each room, and the last command of most. It reads a file of readings of
random rooms in each micro-batch, at a fixed rate that leaves the machine partly idle. After a while,
`penstock state dump` runs in another process, several times. The report has the median time of the micro-batches before
the first dump, by Spark's own account, and of those that ran at the same time as a dump, from the start of its process
to its end; and the dumps' own time, counted from when Spark has started. Each dump is verified and must have a row for
each room.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq

from benchmarks.batches import last_batch, times_beside
from benchmarks.command import option, run_command
from benchmarks.input_files import write_parts
from benchmarks.processes import run_module
from benchmarks.report import note, print_facts
from benchmarks.running import RunningJob
from benchmarks.workload import Rooms
from penstock.snapshots.snapshot_reader import verify

__all__ = ["InputSizes", "Sizes", "bindings_of", "measure", "write_input"]

# Different files of readings; each is repeated under other names.
_PARTS: Final = 50
# How long the readings last for each dump.
_LONGEST_S: Final = 180


class InputSizes(Protocol):
    """The size of the input: rooms, and files of readings."""

    @property
    def keys(self) -> int:
        """The number of rooms."""

    @property
    def batch_rows(self) -> int:
        """The number of readings of a file."""

    @property
    def settings_rows(self) -> int:
        """The number of settings of a file."""

    @property
    def emit_share(self) -> float:
        """The share of readings that lead to a command."""

    @property
    def files(self) -> int:
        """The number of files of readings."""


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    Micro-batches of `batch_rows` readings come every `interval_ms`. The first `warm_up` do not count; then `before` are
    counted before the first of the `dumps`.
    """

    keys: int = 1_000_000
    batch_rows: int = 20_000
    interval_ms: int = 2_000
    warm_up: int = 40
    before: int = 40
    dumps: int = 3
    form: str = option("csv", "format of the dump", choices=("csv", "jsonl", "parquet"))
    settings_rows: int = 500_000
    emit_share: float = 0.45
    cores: int = 2

    @property
    def settings_files(self) -> int:
        """The number of files, and so of micro-batches, with settings."""
        return -(-self.keys // self.settings_rows)

    @property
    def files(self) -> int:
        """The number of files of readings, more than are read."""
        beside = self.dumps * _LONGEST_S * 1_000 // self.interval_ms
        return self.settings_files + self.warm_up + self.before + beside


@dataclass(frozen=True)
class Dump:
    """A dump: its report, and the start and end of its process in seconds of the wall clock."""

    told: dict[str, Any]
    began_s: float
    ended_s: float


def bindings_of(folder: Path) -> dict[str, str]:
    """Return the bindings of the job for the input in a folder: a file of each stream in each micro-batch."""
    streams = {name: f"parquet:{folder / name}?max_files_per_batch=1" for name in ("readings", "settings")}
    return {**streams, "heaters": f"parquet:{folder / 'heaters'}"}


def write_input(folder: Path, sizes: InputSizes) -> None:
    """Write settings of all rooms, and enough readings for the whole benchmark."""
    rooms = Rooms(sizes.keys, sizes.emit_share)
    for name in ("readings", "heaters", "parts"):
        (folder / name).mkdir(parents=True)
    starts = range(0, sizes.keys, sizes.settings_rows)
    write_parts(folder / "settings", (rooms.settings(at, at + sizes.settings_rows) for at in starts))
    for number in range(sizes.files):
        part = folder / "parts" / f"{number % _PARTS}.parquet"
        if number < _PARTS:
            pq.write_table(rooms.readings(sizes.batch_rows, number).table(), part)
        os.link(part, folder / "readings" / f"{number:06d}.parquet")


def take_dump(checkpoint: Path, place: Path, sizes: Sizes) -> Dump:
    """Dump the state in a separate process."""
    arguments = ["state", "dump", str(checkpoint), "--to", str(place), "--format", sizes.form, "-o", "json"]
    began_s = time.time()
    told, _ = run_module("penstock.cli", arguments, place.with_suffix(".log"))
    return Dump(told, began_s, time.time())


def check_dump(place: Path, sizes: Sizes) -> None:
    """Raise RuntimeError if a dump is not sound, or does not have each room once."""
    found = verify(str(place))
    if not found.sound or found.manifest is None:
        raise RuntimeError(f"The dump {place} is not sound: {found.defects}.")
    rows = {table.name: table.rows for table in found.manifest.tables}
    if rows["thermostat/setting"] != sizes.keys or not 0 < rows["thermostat/last_command"] <= sizes.keys:
        raise RuntimeError(f"The dump {place} of {sizes.keys} rooms has a wrong number of rows: {rows}.")


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure. Raises RuntimeError if a dump differs from the state of the job."""
    write_input(work, sizes)
    options = ["--cores", str(sizes.cores), "--batch-interval-ms", str(sizes.interval_ms)]
    job = RunningJob(work, bindings_of(work), options)
    try:
        first = sizes.settings_files + sizes.warm_up
        job.await_true(
            "its counted micro-batches", lambda: last_batch(job.checkpoint) >= first + sizes.before
        )
        dumps = []
        for number in range(sizes.dumps):
            dumps.append(take_dump(job.checkpoint, work / f"dump-{number}", sizes))
            note(dumps[-1].told)
        beside = last_batch(job.checkpoint) + 1
        job.await_true("the micro-batch beside the last dump", lambda: last_batch(job.checkpoint) >= beside)
    finally:
        account = job.end()
    if account["records_in"]["readings"] >= sizes.files * sizes.batch_rows:
        raise RuntimeError(
            "The job has read all readings before the last dump was done. Give it fewer dumps."
        )
    for number in range(sizes.dumps):
        check_dump(work / f"dump-{number}", sizes)
    return _result(sizes, [b for b in account["batches"] if b["batch"] >= first and sum(b["rows"])], dumps)


def _result(sizes: Sizes, batches: list[dict[str, Any]], dumps: list[Dump]) -> dict[str, Any]:
    seconds = statistics.median(dump.told["seconds"] for dump in dumps)
    rows = dumps[-1].told["rows"]
    return {
        "keys": sizes.keys,
        "batch_rows": sizes.batch_rows,
        "interval_ms": sizes.interval_ms,
        "cores": sizes.cores,
        "format": sizes.form,
        **times_beside(batches, [(dump.began_s, dump.ended_s) for dump in dumps]),
        "seconds": round(seconds, 2),
        "process_s": round(statistics.median(dump.ended_s - dump.began_s for dump in dumps), 2),
        "rows": rows,
        "rows_per_s": round(rows / seconds),
        "keys_per_s": round(sizes.keys / seconds),
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    facts = {
        f"a micro-batch before, median of {result['batches_before']}": f"{result['before_ms']:,} ms",
        f"a micro-batch during a dump, median of {result['batches_during']}": f"{result['during_ms']:,} ms",
        "ratio": f"{result['ratio']:.2f}",
        "a dump, from when Spark has started: median": f"{result['seconds']:.1f} s",
        "a dump, the whole process: median": f"{result['process_s']:.1f} s",
        "rows dumped": f"{result['rows']:,}",
        "rows": f"{result['rows_per_s']:,} a second",
        "keys": f"{result['keys_per_s']:,} a second",
    }
    title = (
        f"Dump as {result['format']} of {result['keys']:,} keys, beside {result['batch_rows']:,} readings each "
        f"{result['interval_ms']:,} ms, {result['cores']} cores"
    )
    print_facts(title, facts)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
