"""State growth: the time of a micro-batch of equal size as the number of keys grows.

The temperature-control job holds a setting and the last command of each room. First the settings of all rooms arrive, a
file per micro-batch; then each micro-batch has the same number of readings of random rooms. The report has the median
time between Spark's commits of the last micro-batches, and the 95th percentile. PySpark's own transformWithState runs
the same logic on the same input. Every output is compared with a fold.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.input_files import write_parts
from benchmarks.keyed_state import Input, run_peer, run_penstock
from benchmarks.keyed_state import Sizes as PeerSizes
from benchmarks.report import note, print_table
from benchmarks.workload import Readings, Rooms, expected_commands, mismatch

__all__ = ["Sizes", "measure"]

_KEYS: Final = (10_000, 100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    `keys` are the numbers of keys to hold; up to `peer_keys` PySpark's own state runs as well. Of `batches`
    micro-batches of `batch_rows` readings the last `counted` count, but none of the first `warm_up`. `memory_mb` limits
    the memory of a worker for state.
    """

    keys: Sequence[int] = option(_KEYS, "keys to hold")
    peer_keys: int = option(1_000_000, "the most keys that PySpark holds")
    batch_rows: int = 20_000
    batches: int = 80
    counted: int = 50
    warm_up: int = 5
    peer_batches: int = 20
    settings_rows: int = 500_000
    memory_mb: int | None = option(None, "limit of a worker's memory for state")
    emit_share: float = 0.45
    cores: int = 2


def write_input(folder: Path, rooms: Rooms, sizes: Sizes, batches: int) -> Input:
    """Write settings of all rooms, and readings: a few of known rooms next to each file of settings except the last."""
    starts = range(0, rooms.count, sizes.settings_rows)
    parts = []
    for number in range(len(starts) - 1):
        known = Rooms(rooms.count, rooms.emit_share).readings(100, number)
        sensors = (known.sensor_id % sizes.settings_rows).astype(np.int32)
        moved = rooms.desired[sensors] - rooms.desired[known.sensor_id]
        parts.append(Readings(sensors, known.temperature + moved))
    parts += [rooms.readings(sizes.batch_rows, len(parts) + number) for number in range(batches)]
    write_parts(folder / "readings", (part.table() for part in parts))
    write_parts(folder / "settings", (rooms.settings(at, at + sizes.settings_rows) for at in starts))
    return Input(folder, sum(map(len, parts)), expected_commands(rooms, parts))


def measure(sizes: Sizes, work: Path, *, peer: bool = True) -> dict[str, Any]:
    """Measure each number of keys. Raises RuntimeError if an output differs from the fold."""
    found = []
    options = ["--cores", str(sizes.cores)]
    if sizes.memory_mb is not None:
        options += ["--state-memory-mb", str(sizes.memory_mb)]
    for keys in sizes.keys:
        rooms = Rooms(keys, sizes.emit_share)
        contestants = ["penstock", *(["pyspark"] if peer and keys <= sizes.peer_keys else [])]
        for name in contestants:
            batches = sizes.batches if name == "penstock" else sizes.peer_batches
            place = work / f"{name}-{keys}"
            given = write_input(place / "input", rooms, sizes, batches)
            if name == "penstock":
                commands, rss_mb = run_penstock("job.py", given, options, place)
            else:
                commands, rss_mb = run_peer("row", given, PeerSizes(cores=sizes.cores), place)
            differs = mismatch(commands, given.expected)
            if differs:
                raise RuntimeError(
                    f"{place.name} did not emit the expected commands: {differs}. See {place}."
                )
            ends = batch_ends(place / "checkpoint")
            counted = min(sizes.counted, batches - sizes.warm_up)
            times_ms = (1000 * np.diff(ends[-counted - 1 :])).tolist()
            found.append(_row(name, keys, times_ms, rss_mb))
            note(found[-1])
            shutil.rmtree(place)
    first = {row["contestant"]: row["batch_ms"] for row in reversed(found)}
    for row in found:
        row["growth"] = round(row["batch_ms"] / first[row["contestant"]], 2)
    return {"batch_rows": sizes.batch_rows, "cores": sizes.cores, "memory_mb": sizes.memory_mb, "runs": found}


def _row(name: str, keys: int, times_ms: list[float], rss_mb: int) -> dict[str, Any]:
    return {
        "contestant": name,
        "keys": keys,
        "batch_ms": round(statistics.median(times_ms)),
        "p95_ms": round(float(np.percentile(times_ms, 95))),
        "rss_mb": rss_mb,
    }


def _measure(sizes: Sizes, work: Path, *, no_peer: bool) -> dict[str, Any]:
    return measure(sizes, work, peer=not no_peer)


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    columns = ("contestant", "keys held", "batch ms", "p95 ms", "growth", "memory MB")
    rows = [
        [
            row["contestant"],
            f"{row['keys']:,}",
            f"{row['batch_ms']:,}",
            f"{row['p95_ms']:,}",
            f"{row['growth']:.2f}x",
            f"{row['rss_mb']:,}",
        ]
        for row in result["runs"]
    ]
    title = f"State growth: {result['batch_rows']:,} random records a micro-batch, {result['cores']} cores"
    print_table(title, columns, rows, left=("contestant",))


if __name__ == "__main__":
    run_command(Sizes, _measure, show, {"no_peer": "penstock alone"})
