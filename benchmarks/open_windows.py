"""Open windows: the time of a micro-batch of equal size, and of the end of all windows, while their number grows.

First each key gets a reading, which opens its window, half a million a micro-batch. Then in each micro-batch comes the
same number of readings of random keys for these windows. At last a single reading ends all of them in one micro-batch.
Reported are the median time between Spark's commits of the last micro-batches and its growth, and the time of the one
in which the windows end, for each window and as its growth. What the windows emit is compared with a fold of the input.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.report import Column, print_json, print_table
from benchmarks.window_jobs import SIZE_MS
from benchmarks.windows import Expected, check, fold, run

__all__ = ["Sizes", "main", "measure"]

_WINDOWS: Final = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    `windows` are the numbers of windows to have open, `contestants` jobs of `benchmarks.window_jobs`. Of `batches`
    micro-batches of `batch_rows` readings the last `counted` count. In each of the `rounds` all take turns.
    """

    windows: Sequence[int] = _WINDOWS
    contestants: Sequence[str] = ("columns", "records")
    batch_rows: int = 20_000
    batches: int = 25
    counted: int = 15
    fill_rows: int = 500_000
    rounds: int = 3
    cores: int = 2


@dataclass(frozen=True)
class Input:
    """A folder of readings, how many files of them open the windows, and what comes of all."""

    folder: Path
    fills: int
    expected: Expected


def write_input(folder: Path, windows: int, sizes: Sizes) -> Input:
    """Write readings of as many keys as there are windows, all of one window's time but the last."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    keys = random.permutation(windows)
    fills = [keys[start : start + sizes.fill_rows] for start in range(0, windows, sizes.fill_rows)]
    drawn = [random.integers(0, windows, sizes.batch_rows) for _ in range(sizes.batches)]
    parts = [
        pa.table(
            {
                "key": part,
                "at": random.integers(0, SIZE_MS, len(part)),
                "value": random.normal(20.0, 5.0, len(part)),
            }
        )
        for part in [*fills, *drawn]
    ]
    last = pa.table({"key": [0], "at": [10 * SIZE_MS], "value": [0.0]})
    for number, part in enumerate([*parts, last]):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(part, path)
        os.utime(path, (number, number))
    return Input(folder, len(fills), fold(pa.concat_tables(parts)))


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure each number of windows in turn; RuntimeError when an output is not the fold's."""
    inputs = {windows: write_input(work / f"readings-{windows}", windows, sizes) for windows in sizes.windows}
    batches_ms: dict[tuple[str, int], list[float]] = {}
    ends_ms: dict[tuple[str, int], list[float]] = {}
    memory: dict[tuple[str, int], int] = {}
    for _ in range(sizes.rounds):
        for name in sizes.contestants:
            for windows, given in inputs.items():
                place = work / name
                out, rss_mb = run(name, given.folder, place, sizes.cores)
                check(name, out, given.expected)
                *times_ms, end_ms = _times_ms(place / "checkpoint", given.fills, sizes)
                found = name, windows
                batches_ms.setdefault(found, []).append(statistics.median(times_ms))
                ends_ms.setdefault(found, []).append(end_ms)
                memory[found] = max(rss_mb, memory.get(found, 0))
                told = f"{name}, {windows:,} windows: {batches_ms[found][-1]:,.0f} ms, end {end_ms:,.0f} ms"
                print(told, file=sys.stderr, flush=True)
                shutil.rmtree(place)
    rows = []
    for name in sizes.contestants:
        first = name, min(sizes.windows)
        for windows in sizes.windows:
            found = name, windows
            # Those of one round are next to each other, so that other load on the machine is alike in both.
            growth = statistics.median(
                now / then for now, then in zip(batches_ms[found], batches_ms[first], strict=True)
            )
            by_window = statistics.median(
                now / then for now, then in zip(ends_ms[found], ends_ms[first], strict=True)
            ) / (windows / first[1])
            rows.append(
                {
                    "contestant": name,
                    "windows": windows,
                    "batch_ms": round(statistics.median(batches_ms[found])),
                    "growth": round(growth, 2),
                    "end_ms": round(statistics.median(ends_ms[found])),
                    "end_us_by_window": round(1000 * statistics.median(ends_ms[found]) / windows, 1),
                    "end_growth_by_window": round(by_window, 2),
                    "rss_mb": memory[found],
                }
            )
    return {"batch_rows": sizes.batch_rows, "cores": sizes.cores, "rounds": sizes.rounds, "runs": rows}


def _times_ms(checkpoint: Path, fills: int, sizes: Sizes) -> list[float]:
    """How long the micro-batches that count took, and that in which the windows ended."""
    taken = 1000 * np.diff(batch_ends(checkpoint)[: fills + sizes.batches + 1])
    found: list[float] = taken[-sizes.counted - 1 :].tolist()
    return found


def main() -> None:
    """Measure, print a table, and with --json the result as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_windows", description=__doc__)
    default = Sizes()
    parser.add_argument(
        "--windows", type=int, nargs="+", default=list(default.windows), help="windows to open"
    )
    parser.add_argument("--contestants", nargs="+", default=list(default.contestants))
    for name in ("batch_rows", "batches", "counted", "fill_rows", "rounds", "cores"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument("--json", action="store_true")
    given = vars(parser.parse_args())
    as_json = given.pop("json")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as work:
        result = measure(Sizes(**given), Path(work))
    show(result)
    if as_json:
        print_json(result)


def show(result: dict[str, Any]) -> None:
    """Print what was measured as a table."""
    columns = [
        Column("contestant", left=True),
        Column("open windows"),
        Column("batch ms"),
        Column("growth"),
        Column("end ms"),
        Column("end us/window"),
        Column("growth"),
        Column("memory MB"),
    ]
    rows = [
        [
            row["contestant"],
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
    print_table(title, columns, rows)


if __name__ == "__main__":
    main()
