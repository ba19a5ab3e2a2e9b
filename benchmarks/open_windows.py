"""Open windows: the time of a micro-batch of equal size, and of ending all windows, as their number grows.

First a reading opens each window, half a million per micro-batch. Then each micro-batch has the same number of readings
for random open windows. Finally a single reading ends all of them in one micro-batch. Each window has its own key, or
fewer keys have many windows each. The report has the median time between Spark's commits of the last micro-batches and
its growth, and the time of the micro-batch in which the windows end, per window and as its growth. The output of the
windows is compared with a fold of the input.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.batches import batch_ends
from benchmarks.command import run_command
from benchmarks.input_files import write_parts
from benchmarks.report import note, print_table
from benchmarks.window_jobs import OPEN_MS, SIZE_MS
from benchmarks.windows import Expected, check, fold, run

__all__ = ["Sizes", "measure"]

_WINDOWS: Final = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    `windows` are the numbers of open windows, `per_key` the number of windows per key, and `roads` the jobs of
    `benchmarks.window_jobs` to run. Of `batches` micro-batches of `batch_rows` readings the last `counted` count. In
    each of the `rounds` all take turns.
    """

    windows: Sequence[int] = _WINDOWS
    per_key: Sequence[int] = (1, 1000)
    roads: Sequence[str] = ("columns", "records")
    batch_rows: int = 20_000
    batches: int = 25
    counted: int = 15
    fill_rows: int = 500_000
    rounds: int = 3
    cores: int = 2


@dataclass(frozen=True)
class Input:
    """A folder of readings, the number of files that open the windows, and the expected output."""

    folder: Path
    fills: int
    expected: Expected


@dataclass
class Measured:
    """The measurements for a number of windows, by round."""

    batches_ms: list[float] = field(default_factory=list)
    ends_ms: list[float] = field(default_factory=list)
    rss_mb: int = 0


def write_input(folder: Path, windows: int, per_key: int, sizes: Sizes) -> Input:
    """Write readings for the windows, and one reading that ends them."""
    random = np.random.default_rng(0)
    keys = max(windows // per_key, 1)
    numbers = random.permutation(windows)
    fills = [numbers[start : start + sizes.fill_rows] for start in range(0, windows, sizes.fill_rows)]
    parts = [*fills, *(random.integers(0, windows, sizes.batch_rows) for _ in range(sizes.batches))]
    tables = [
        pa.table(
            {
                "key": part % keys,
                "at": part // keys * SIZE_MS + random.integers(0, SIZE_MS, len(part)),
                "value": random.normal(20.0, 5.0, len(part)),
            }
        )
        for part in parts
    ]
    last = pa.table({"key": [0], "at": [windows * SIZE_MS + 2 * OPEN_MS], "value": [0.0]})
    write_parts(folder, [*tables, last])
    return Input(folder, len(fills), fold(pa.concat_tables(tables)))


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure each number of windows in turn. Raises RuntimeError if an output differs from the fold."""
    inputs = {
        (per_key, windows): write_input(work / f"{windows}-by-{per_key}", windows, per_key, sizes)
        for per_key in sizes.per_key
        for windows in sizes.windows
    }
    found = {(road, *place): Measured() for road in sizes.roads for place in inputs}
    for _ in range(sizes.rounds):
        for (road, *place), measured in found.items():
            _measure_once(road, inputs[place[0], place[1]], measured, sizes, work / "run")
            told = f"{road}, {place[1]:,} windows, {place[0]:,} a key: {measured.batches_ms[-1]:,.0f} ms, "
            note(f"{told}end {measured.ends_ms[-1]:,.0f} ms")
    least = min(sizes.windows)
    rows = [
        {"road": road, "per_key": per_key, "windows": windows}
        | _row(measured, found[road, per_key, least], windows, windows / least)
        for (road, per_key, windows), measured in found.items()
    ]
    return {"batch_rows": sizes.batch_rows, "cores": sizes.cores, "rounds": sizes.rounds, "runs": rows}


def _measure_once(road: str, given: Input, measured: Measured, sizes: Sizes, work: Path) -> None:
    name = f"open_{road}"
    out, rss_mb = run(name, given.folder, work, sizes.cores)
    check(name, out, given.expected)
    *times_ms, end_ms = _times_ms(work / "checkpoint", given.fills, sizes)
    measured.batches_ms.append(statistics.median(times_ms))
    measured.ends_ms.append(end_ms)
    measured.rss_mb = max(rss_mb, measured.rss_mb)
    shutil.rmtree(work)


def _row(measured: Measured, first: Measured, windows: int, times: float) -> dict[str, Any]:
    end_ms = statistics.median(measured.ends_ms)
    return {
        "batch_ms": round(statistics.median(measured.batches_ms)),
        "growth": round(_growth(measured.batches_ms, first.batches_ms), 2),
        "end_ms": round(end_ms),
        "end_us_by_window": round(1000 * end_ms / windows, 1),
        "end_growth_by_window": round(_growth(measured.ends_ms, first.ends_ms) / times, 2),
        "rss_mb": measured.rss_mb,
    }


def _growth(times: list[float], first: list[float]) -> float:
    """Return the growth factor: the median of the ratios within each round, whose runs are close in time."""
    return statistics.median(one / other for one, other in zip(times, first, strict=True))


def _times_ms(checkpoint: Path, fills: int, sizes: Sizes) -> list[float]:
    """Return the durations of the counted micro-batches, and of the one in which the windows ended."""
    taken = 1000 * np.diff(batch_ends(checkpoint)[: fills + sizes.batches + 1])
    found: list[float] = taken[-sizes.counted - 1 :].tolist()
    return found


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    columns = ("road", "of a key", "open windows", "batch ms", "growth", "end ms", "end us/window", "growth")
    rows = [
        [
            row["road"],
            f"{row['per_key']:,}",
            f"{row['windows']:,}",
            f"{row['batch_ms']:,}",
            f"{row['growth']:.2f}x",
            f"{row['end_ms']:,}",
            f"{row['end_us_by_window']:,}",
            f"{row['end_growth_by_window']:.2f}x",
            f"{row['rss_mb']:,}",
        ]
        for row in result["runs"]
    ]
    title = f"Open windows: {result['batch_rows']:,} random records a micro-batch, {result['cores']} cores"
    print_table(title, (*columns, "memory MB"), rows, left=("road",))


if __name__ == "__main__":
    run_command(Sizes, measure, show)
