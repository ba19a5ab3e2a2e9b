"""Keyed state: rows per second of penstock and of PySpark's own transformWithState, same logic, same input.

The temperature-control job reads folders of Parquet files, one file per micro-batch. The first micro-batch has the
settings of all sensors and a few readings; it warms up the JVM and the workers and is not counted. The rate is
rows / (end of the last micro-batch - end of the first one), by the times of Spark's own commit files, for all
contestants. Contestants take turns, each in its own process, and the output of every run is compared with a fold of
the input.
"""

from __future__ import annotations

import functools
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.input_files import write_parts
from benchmarks.processes import EXAMPLE, run_module
from benchmarks.report import note, print_table
from benchmarks.running import run_bounded
from benchmarks.workload import OFF, ON, Commands, Readings, Rooms, expected_commands, mismatch

__all__ = ["Input", "Sizes", "measure", "read_commands", "report", "run_peer", "run_penstock"]

_WARM_UP_ROWS: Final = 100_000
_SWEEP_KEYS: Final = (1_000, 10_000, 100_000, 1_000_000)
_PENSTOCK: Final = {"per_record": "job.py", "vectorised": "vectorised.py"}


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    `file_rows` is the number of readings in one file, so in one micro-batch; `peer_modes` are the modes of PySpark's
    `transformWithState` to try, of which the faster one is kept; `forms` are the forms of penstock's function.
    """

    rows: int = 16_000_000
    keys: int = 100_000
    file_rows: int = option(4_000_000, "readings in a file, so in a micro-batch")
    pyspark_rows: int = option(1_000_000, "PySpark's part of the rows")
    emit_share: float = option(0.45, "commands for each reading")
    cores: int = 2
    rounds: int = option(3, "runs of each contestant; medians count")
    peer_modes: Sequence[str] = ("row", "pandas")
    forms: Sequence[str] = tuple(_PENSTOCK)

    @property
    def warm_up_rows(self) -> int:
        """The number of readings in the first micro-batch."""
        return min(_WARM_UP_ROWS, self.pyspark_rows)


@dataclass(frozen=True)
class Input:
    """The input of one or more contestants on disk, and the expected commands."""

    folder: Path
    rows: int
    expected: Commands


@dataclass
class Runs:
    """The measurements of one contestant."""

    rows_per_s: list[float] = field(default_factory=list)
    rss_mb: list[int] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return the medians."""
        return {
            "rows_per_s": round(statistics.median(self.rows_per_s)),
            "rss_mb": round(statistics.median(self.rss_mb)),
        }


def write_input(folder: Path, rooms: Rooms, parts: Sequence[Readings], warm_up_rows: int) -> Input:
    """Write the settings and the readings, one file for each part; the first one is the warm-up."""
    write_parts(folder / "readings", (part.table() for part in parts))
    write_parts(folder / "settings", [rooms.settings()])
    return Input(folder, sum(map(len, parts)) - warm_up_rows, expected_commands(rooms, list(parts)))


def make_inputs(folder: Path, sizes: Sizes, *, peer: bool) -> tuple[Input, Input | None]:
    """Write the whole input, and PySpark's part of it: the same warm-up and the first rows after it."""
    rooms = Rooms(sizes.keys, sizes.emit_share)
    counts = [sizes.warm_up_rows]
    counts += [min(sizes.file_rows, sizes.rows - done) for done in range(0, sizes.rows, sizes.file_rows)]
    parts = [rooms.readings(count, number) for number, count in enumerate(counts)]
    whole = write_input(folder / "whole", rooms, parts, sizes.warm_up_rows)
    if not peer:
        return whole, None
    first = parts[1]
    part = Readings(first.sensor_id[: sizes.pyspark_rows], first.temperature[: sizes.pyspark_rows])
    return whole, write_input(folder / "part", rooms, [parts[0], part], sizes.warm_up_rows)


def run_penstock(job: str, given: Input, options: Sequence[str], work: Path) -> tuple[Commands, int]:
    """Run a job of the example with further options of `run_job`; return its commands and peak memory."""
    (work / "out").mkdir()
    bindings = {
        "readings": f"parquet:{given.folder / 'readings'}?max_files_per_batch=1",
        "settings": f"parquet:{given.folder / 'settings'}?max_files_per_batch=1",
        "heaters": f"parquet:{work / 'out'}",
    }
    _, rss_mb = run_bounded(str(EXAMPLE / job), bindings, options, work)
    files = sorted((work / "out").glob("*.parquet"))
    return read_commands([[path] for path in files]), rss_mb


def run_peer(mode: str, given: Input, sizes: Sizes, work: Path) -> tuple[Commands, int]:
    """Run PySpark's own transformWithState, in row or pandas mode; return its commands and peak memory."""
    arguments = [mode, "--data", str(given.folder), "--output", str(work / "out")]
    arguments += ["--checkpoint", str(work / "checkpoint"), "--cores", str(sizes.cores)]
    _, rss_mb = run_module("benchmarks.pyspark_peer", arguments, work / "stderr.log")
    return read_commands(_files_by_batch(work / "out")), rss_mb


def _files_by_batch(output: Path) -> list[list[Path]]:
    """Return the files of Spark's file sink, micro-batch by micro-batch, as its own log lists them."""
    found: list[list[Path]] = []
    seen: set[str] = set()
    logs = [path for path in (output / "_spark_metadata").iterdir() if path.name.split(".")[0].isdigit()]
    for log in sorted(logs, key=lambda path: int(path.name.split(".")[0])):
        names = [line.split('"path":"', 1)[1].split('"', 1)[0] for line in log.read_text().splitlines()[1:]]
        # Every tenth one is compact: it lists the files of all micro-batches so far.
        new = [name for name in names if name not in seen]
        seen.update(new)
        found.append([output / name.rsplit("/", 1)[1] for name in new])
    return found


def read_commands(batches: Sequence[Sequence[Path]]) -> Commands:
    """Return the commands in files written micro-batch by micro-batch; each sensor's are in one file of a batch."""
    tables = [
        pq.read_table(path, columns=["sensor_id", "command"], partitioning=None)
        for b in batches
        for path in b
    ]
    table = pa.concat_tables(tables)
    is_on = pc.equal(table.column("command"), "ON").to_numpy()
    return Commands.in_order(table.column("sensor_id").to_numpy(), np.where(is_on, ON, OFF).astype(np.int8))


def measure(sizes: Sizes, work: Path, *, peer: bool = True) -> dict[str, Any]:
    """Let the contestants take turns. Raises RuntimeError if an output differs from the fold."""
    whole, part = make_inputs(work / "input", sizes, peer=peer)
    runs: dict[str, Runs] = {}
    peers = list(sizes.peer_modes) if peer else []
    for number in range(sizes.rounds):
        for mode in peers:
            assert part is not None
            run = functools.partial(run_peer, mode, part, sizes)
            _take_turn(
                runs.setdefault(f"pyspark_{mode}", Runs()), part, work / f"pyspark-{mode}-{number}", run
            )
        if number == 0 and peers:
            peers = [max(peers, key=lambda mode: runs[f"pyspark_{mode}"].rows_per_s[0])]
        for form in sizes.forms:
            run = functools.partial(run_penstock, _PENSTOCK[form], whole, ["--cores", str(sizes.cores)])
            _take_turn(runs.setdefault(form, Runs()), whole, work / f"{form}-{number}", run)
    shutil.rmtree(work / "input")
    summaries = {name: found.summary() for name, found in runs.items()}
    if peers:
        summaries["pyspark"] = summaries[f"pyspark_{peers[0]}"]
    return report(sizes, summaries, peers[0] if peers else None, whole)


def _take_turn(runs: Runs, given: Input, place: Path, run: Callable[[Path], tuple[Commands, int]]) -> None:
    """Run a contestant once, in its own folder, which is removed if the output is right."""
    place.mkdir()
    commands, rss_mb = run(place)
    differs = mismatch(commands, given.expected)
    if differs:
        raise RuntimeError(
            f"{place.name} did not emit the expected commands: {differs}. Its files are in {place}."
        )
    ends = batch_ends(place / "checkpoint")
    runs.rows_per_s.append(given.rows / (ends[-1] - ends[0]))
    runs.rss_mb.append(rss_mb)
    note(f"{place.name}: {runs.rows_per_s[-1]:,.0f} rows/s, {rss_mb:,} MB")
    shutil.rmtree(place)


def report(
    sizes: Sizes, summaries: dict[str, dict[str, float]], peer_mode: str | None, whole: Input
) -> dict[str, Any]:
    """Return the result from the measurements of each contestant; `pyspark` is the peer in its faster mode."""
    names = [name for name in ("pyspark", *sizes.forms) if name in summaries]
    rates = {name: summaries[name]["rows_per_s"] for name in names}
    result: dict[str, Any] = {
        "rows_per_s": rates,
        "rss_mb": {name: summaries[name]["rss_mb"] for name in names},
        "rows": sizes.rows,
        "keys": sizes.keys,
        "file_rows": sizes.file_rows,
        "rounds": sizes.rounds,
        "cores": sizes.cores,
        "emit_share": round(len(whole.expected) / (whole.rows + sizes.warm_up_rows), 4),
    }
    if peer_mode is not None:
        result |= {f"ratio_{form}": round(rates[form] / rates["pyspark"], 1) for form in sizes.forms}
        modes = {n: s["rows_per_s"] for n, s in summaries.items() if n.startswith("pyspark_")}
        result |= {
            "pyspark_rows": sizes.pyspark_rows,
            "pyspark_mode": peer_mode,
            "pyspark_modes_rows_per_s": modes,
        }
    return result


def _measure(sizes: Sizes, work: Path, *, sweep: bool) -> dict[str, Any]:
    return run_sweep(sizes, work) if sweep else measure(sizes, work)


def _show(result: dict[str, Any]) -> None:
    show(result.get("sweep", [result]))


def run_sweep(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure penstock with few and many keys."""
    found = []
    for keys in _SWEEP_KEYS:
        place = work / f"keys-{keys}"
        found.append(measure(Sizes(**{**vars(sizes), "keys": keys}), place, peer=False))
    return {"sweep": found}


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print the measurements as a table."""
    rows = []
    for result in results:
        for name, rate in result["rows_per_s"].items():
            ratio = result.get(f"ratio_{name}")
            rows.append(
                [
                    f"{result['keys']:,}",
                    name,
                    f"{rate:,.0f}",
                    f"{ratio:.1f}x" if ratio else "",
                    f"{result['rss_mb'][name]:,}",
                ]
            )
    columns = ("keys", "contestant", "rows/s", "ratio", "memory MB")
    first = results[0]
    title = f"Keyed state: {first['rows']:,} rows, {first['cores']} cores, {first['emit_share']:.0%} emit a command"
    print_table(title, columns, rows, left=("contestant",))


if __name__ == "__main__":
    run_command(Sizes, _measure, _show, {"sweep": "penstock alone at 1k, 10k, 100k and 1M keys"})
