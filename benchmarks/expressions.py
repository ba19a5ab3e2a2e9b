"""Expressions: where and select beside Python functions and Spark's own expressions, on the same Parquet file.

Each contestant reads the file, evaluates, and drops the results, on one core; rounds take turns in one process.
penstock reads batches of `batch_rows` and uses the code of a job: what a task does with records between decoding them
and the next step. The Python functions are those of `filter` and `map` in penstock, on a part of the rows. Spark reads
with its vectorised reader, evaluates generated code, and writes to its sink `noop`. penstock and the Python functions
are compared by CPU time, which other work on the machine changes little: each is one thread of this process. The second
table has the evaluation alone, by the size of the batches.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.command import option, run_command
from benchmarks.report import note, print_table
from penstock.expressions.compiler import compile_condition, compile_selection
from penstock.machine.java import find_java
from penstock.operators.expression_transforms import apply_expression
from penstock.operators.record_blocks import Records
from penstock.operators.transforms import apply_transform
from penstock.records.schemas import record_type

__all__ = ["APPLIED", "Sizes", "measure", "read", "show", "write_readings"]

CONDITION: Final = "temperature > 30 and room in ('a', 'b')"
FIELDS: Final = (
    "room",
    "temperature * 1.8 + 32 AS fahrenheit",
    "number + 1 AS next",
    "CASE WHEN number % 10 = 0 THEN upper(room) ELSE room END AS label",
)
_READING: Final = record_type("room STRING, temperature DOUBLE, number BIGINT")
_CONDITION: Final = compile_condition(CONDITION, _READING)
_SELECTION: Final = compile_selection(FIELDS, _READING)
_SELECTED: Final = _SELECTION.record_type


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rows: int = option(8_000_000, "rows of the file; default: %(default)s")
    python_rows: int = option(400_000, "rows for the Python functions; default: %(default)s")
    batch_rows: int = option(100_000, "rows of a batch; default: %(default)s")
    rounds: int = option(5, "rounds of each contestant; default: %(default)s")


def write_readings(path: Path, rows: int) -> None:
    """Write the file."""
    draw = np.random.default_rng(3)
    names = pa.array(["a", "b", "c", "d", "e", "f", "g", "h"])
    columns = [
        names.take(pa.array(draw.integers(0, len(names), rows))),
        pa.array(draw.normal(25, 10, rows)),
        pa.array(draw.integers(0, 1000, rows)),
    ]
    pq.write_table(pa.table(columns, schema=_READING.schema), path)


def read(path: Path, most: int, batch_rows: int) -> Iterator[Records]:
    """Yield the first rows of the file in batches."""
    left = most
    for batch in pq.ParquetFile(path).iter_batches(batch_rows, use_threads=False):
        part = batch.slice(0, min(left, batch.num_rows))
        left -= part.num_rows
        yield Records(part, "readings", "p", pa.array(np.arange(part.num_rows)))
        if not left:
            return


def _warm(reading: Any) -> bool:
    return bool(reading.temperature > 30 and reading.room in ("a", "b"))


def _changed(reading: Any) -> Any:
    label = reading.room.upper() if reading.number % 10 == 0 else reading.room
    return _SELECTED.python_class(reading.room, reading.temperature * 1.8 + 32, reading.number + 1, label)


APPLIED: Final[dict[tuple[str, str], Callable[[Records], Any]]] = {
    ("where", "penstock"): lambda found: apply_expression(_CONDITION, found, _READING, "where"),
    ("select", "penstock"): lambda found: apply_expression(_SELECTION, found, _READING, "select"),
    ("where", "python"): lambda found: apply_transform("filter", _warm, found, _READING, _READING, "filter"),
    ("select", "python"): lambda found: apply_transform("map", _changed, found, _READING, _SELECTED, "map"),
}


def _rates(path: Path, what: str, who: str, most: int, batch_rows: int) -> tuple[float, float, int]:
    """Return the rows per second and per CPU-second of one of penstock's contestants, and the number of results."""
    begun, cpu = time.perf_counter(), time.process_time()
    results = 0
    for found in read(path, most, batch_rows):
        kept, _ = APPLIED[what, who](found)
        results += len(kept)
    return most / (time.perf_counter() - begun), most / (time.process_time() - cpu), results


class _Spark:
    """Spark with one core, on the same file."""

    def __init__(self, path: Path) -> None:
        from pyspark.sql import SparkSession

        os.environ["JAVA_HOME"] = str(find_java().home)
        builder: Any = SparkSession.builder
        self._session = (
            builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        self._frame = self._session.read.parquet(str(path))

    def query(self, what: str) -> Any:
        """Return the query."""
        return self._frame.where(CONDITION) if what == "where" else self._frame.selectExpr(*FIELDS)

    def rate(self, what: str, rows: int) -> float:
        """Return the rows per second."""
        begun = time.perf_counter()
        self.query(what).write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - begun)

    def close(self) -> None:
        """Stop."""
        self._session.stop()


def measure(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Measure, and compare the number of results."""
    path = folder / "readings.parquet"
    write_readings(path, sizes.rows)
    spark = _Spark(path)
    rates: dict[str, dict[str, list[float]]] = {}
    try:
        for what in ("where", "select"):
            expected = spark.query(what).count()
            names = ("penstock", "python", "spark", "penstock cpu", "python cpu")
            found = rates.setdefault(what, {name: [] for name in names})
            for number in range(sizes.rounds + 1):
                note(f"{what}, round {number} of {sizes.rounds}")
                rate, of_cpu, results = _rates(path, what, "penstock", sizes.rows, sizes.batch_rows)
                if results != expected:
                    raise SystemExit(f"{what} has {results} results, and {expected} in Spark.")
                few = min(sizes.python_rows, sizes.rows)
                python, python_cpu, _ = _rates(path, what, "python", few, sizes.batch_rows)
                spark_rate = spark.rate(what, sizes.rows)
                round_rates = dict(zip(names, (rate, python, spark_rate, of_cpu, python_cpu), strict=True))
                # The first round warms up.
                for who, one in round_rates.items():
                    found[who] += [one] if number else []
    finally:
        spark.close()
    medians = {
        what: {who: statistics.median(one) for who, one in found.items()} for what, found in rates.items()
    }
    return {"rows": sizes.rows, "rows_per_s": medians, "by_batch": _by_batch(path, sizes)}


def _by_batch(path: Path, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Return the milliseconds that a batch takes, by its rows: the evaluation alone."""
    found: dict[str, dict[str, float]] = {}
    for rows in (1_000, 10_000, 100_000):
        batch = next(read(path, min(rows, sizes.rows), rows))
        for (what, who), apply in APPLIED.items():
            taken = []
            for _ in range(sizes.rounds * 4):
                begun = time.perf_counter()
                apply(batch)
                taken.append(1000 * (time.perf_counter() - begun))
            found.setdefault(str(rows), {})[f"{what} {who}"] = statistics.median(taken)
    return found


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    rows = []
    for what, rates in result["rows_per_s"].items():
        penstock = rates["penstock"]
        of_cpu = rates["penstock cpu"] / rates["python cpu"]
        against = (f"{of_cpu:.1f}x", f"{penstock / rates['spark']:.1f}x")
        rows.append((what, *(f"{rates[who] / 1e6:.2f}" for who in ("penstock", "python", "spark")), *against))
    columns = ("", "penstock, M rows/s", "Python", "Spark", "to Python, by CPU time", "to Spark")
    print_table(f"{result['rows']:,} rows from Parquet, one core", columns, rows, left=("",))
    names = list(next(iter(result["by_batch"].values())))
    batches = [(rows, *(f"{one[name]:.3f}" for name in names)) for rows, one in result["by_batch"].items()]
    print_table("Evaluation alone, ms per batch", ("rows", *names), batches)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
