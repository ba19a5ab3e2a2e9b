"""Expiring state: the time of each micro-batch while many keys expire together and leave the state.

Visitors come in micro-batches of one second of event time each: first all of them, then the same number of random ones
in each. After the time to live of the first visits most keys expire in one micro-batch. The report has the median time
between Spark's commits of the micro-batches after the first visits, the 95th percentile and the longest. The output is
compared with a fold.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.command import run_command
from benchmarks.input_files import write_parts
from benchmarks.report import print_table
from benchmarks.running import run_bounded
from benchmarks.ttl_job import TTL

__all__ = ["Sizes", "measure"]


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement: `keys` once in files of `first_rows`, then `batches` of `batch_rows` random keys."""

    keys: int = 1_000_000
    first_rows: int = 200_000
    batches: int = 80
    batch_rows: int = 20_000
    cores: int = 2


def write_input(folder: Path, sizes: Sizes) -> tuple[int, int]:
    """Write the visits; return the number of newcomers among them, and the number of files with first visits."""
    random = np.random.default_rng(0)
    starts = range(0, sizes.keys, sizes.first_rows)
    parts = [np.arange(start, min(start + sizes.first_rows, sizes.keys)) for start in starts]
    parts += [random.integers(0, sizes.keys, sizes.batch_rows) for _ in range(sizes.batches)]
    ttl_ms = TTL.total_seconds() * 1000
    last = np.full(sizes.keys, -(2**62), np.int64)
    expected, tables = 0, []
    for number, visitors in enumerate(parts):
        # All first visits are at one time, so that they expire together.
        at = 1000 * max(number - len(starts) + 1, 0)
        came = np.unique(visitors)
        expected += int((last[came] + ttl_ms <= at).sum())
        last[came] = at
        visits = pa.table({"visitor": visitors.astype(np.int64), "at": np.full(len(visitors), at, np.int64)})
        tables.append(visits)
    write_parts(folder, tables)
    return expected, len(starts)


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Run the job. Raises RuntimeError if its newcomers differ from those of the fold."""
    expected, first = write_input(work / "visits", sizes)
    (work / "new").mkdir()
    visits = f"parquet:{work / 'visits'}?max_files_per_batch=1"
    bindings = {"visits": visits, "new": f"parquet:{work / 'new'}"}
    job = str(Path(__file__).with_name("ttl_job.py"))
    _, rss_mb = run_bounded(job, bindings, ["--cores", str(sizes.cores)], work)
    found = sum(pq.read_metadata(path).num_rows for path in (work / "new").glob("*.parquet"))
    if found != expected:
        raise RuntimeError(f"The job reported {found} newcomers, the fold {expected}.")
    # The wait for the first micro-batches does not count.
    times_ms = 1000 * np.diff(batch_ends(work / "checkpoint")[first + 2 :])
    median_ms = statistics.median(times_ms.tolist())
    return {
        "keys": sizes.keys,
        "batch_rows": sizes.batch_rows,
        "batch_ms": round(median_ms),
        "p95_ms": round(float(np.percentile(times_ms, 95))),
        "longest_ms": round(float(times_ms.max())),
        "longest_by_median": round(float(times_ms.max() / median_ms), 2),
        "rss_mb": rss_mb,
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    columns = ("keys", "batch ms", "p95 ms", "longest ms", "longest", "memory MB")
    row = [f"{result[name]:,}" for name in ("keys", "batch_ms", "p95_ms", "longest_ms")]
    row += [f"{result['longest_by_median']:.2f}x", f"{result['rss_mb']:,}"]
    title = f"Expiring state: {result['batch_rows']:,} random records a micro-batch"
    print_table(title, columns, [row])


if __name__ == "__main__":
    run_command(Sizes, measure, show)
