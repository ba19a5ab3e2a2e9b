"""Learned state: models per key that learn, beside a value per key of the same size that is set by hand.

All keys come in a few micro-batches, then the same number of records of random keys in each. The report has the median
time between Spark's commits of the latter, which is that of reading, shuffling, learning and storing.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.input_files import write_parts
from benchmarks.learned_jobs import FEATURES, WEIGHTS
from benchmarks.report import note, print_table
from benchmarks.running import run_bounded

__all__ = ["CONTESTANTS", "Sizes", "measure", "show"]

CONTESTANTS: Final = {
    "set_by_hand": "value that is set by hand",
    "learned": "model that learns",
    "scored": "model that scores and learns",
}


@dataclass(frozen=True)
class Sizes:
    """What is measured: `keys` once in files of `first_rows`, then `batches` of `batch_rows` records of random keys."""

    contestants: Sequence[str] = option(tuple(CONTESTANTS), "what runs; ratios are those to the first")
    keys: int = option(1_000_000, "keys that have a model")
    first_rows: int = 250_000
    batches: int = 24
    batch_rows: int = 200_000
    warm_up: int = option(4, "of the batches, those that do not count")
    rounds: int = 3
    cores: int = 2


def write_input(folder: Path, sizes: Sizes) -> int:
    """Write the records; return how many there are."""
    random = np.random.default_rng(0)
    starts = range(0, sizes.keys, sizes.first_rows)
    parts = [np.arange(start, min(start + sizes.first_rows, sizes.keys)) for start in starts]
    parts += [random.integers(0, sizes.keys, sizes.batch_rows) for _ in range(sizes.batches)]
    write_parts(
        folder,
        (
            pa.table({"key": keys} | {name: random.normal(size=len(keys)) for name in FEATURES})
            for keys in parts
        ),
    )
    return sum(map(len, parts))


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Let the contestants take turns. Raises RuntimeError if one of them did not process all records."""
    rows = write_input(work / "input", sizes)
    batch_ms: dict[str, list[float]] = {name: [] for name in sizes.contestants}
    for number in range(sizes.rounds):
        for name in sizes.contestants:
            place = work / f"{name}-{number}"
            (place / "out").mkdir(parents=True)
            bindings = {
                "samples": f"parquet:{work / 'input'}?max_files_per_batch=1",
                "out": f"parquet:{place / 'out'}",
            }
            job = f"{Path(__file__).with_name('learned_jobs.py')}:{name}"
            account, _ = run_bounded(job, bindings, ["--cores", str(sizes.cores)], place)
            if account["records_in"] != {"samples": rows} or account["dead_letters"]:
                raise RuntimeError(f"{place.name} did not process {rows:,} records: {account}. See {place}.")
            ends = batch_ends(place / "checkpoint")
            counted = ends[-(sizes.batches - sizes.warm_up) - 1 :]
            batch_ms[name].append(1000 * statistics.median(np.diff(counted).tolist()))
            note(f"{place.name}: {batch_ms[name][-1]:,.0f} ms")
            shutil.rmtree(place)
    first = statistics.median(batch_ms[sizes.contestants[0]])
    runs = [
        {
            "state": CONTESTANTS[name],
            "batch_ms": round(statistics.median(batch_ms[name])),
            "ratio": round(statistics.median(batch_ms[name]) / first, 2),
        }
        for name in sizes.contestants
    ]
    return {
        "keys": sizes.keys,
        "batch_rows": sizes.batch_rows,
        "bytes_per_key": 8 * len(WEIGHTS),
        "rounds": sizes.rounds,
        "cores": sizes.cores,
        "runs": runs,
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    rows = [[row["state"], f"{row['batch_ms']:,}", f"{row['ratio']:.2f}x"] for row in result["runs"]]
    title = (
        f"{result['keys']:,} keys with {result['bytes_per_key']} bytes of weights, "
        f"{result['batch_rows']:,} records a micro-batch, {result['cores']} cores"
    )
    print_table(title, ("state", "batch ms", "ratio"), rows, left=("state",))


if __name__ == "__main__":
    run_command(Sizes, measure, show)
