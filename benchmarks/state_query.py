"""State query: how long a query over a large state takes, and what it costs the running job.

The job and its input are those of `state_dump`. After a while, `penstock query` runs in another process, again and
again, with pauses. The report has the median time of the micro-batches without a query, by Spark's own account, and of
those during queries; and the time of a query, which is that of its whole process, with the start of Python. CPU times,
of a query and of the job with all its processes for each micro-batch, tell both from other work on the machine. Each
answer must have as many rooms as there are, and the newest micro-batch of its time.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.batches import last_batch, times_beside
from benchmarks.command import run_command
from benchmarks.processes import TreeUsage, run_module
from benchmarks.report import note, print_facts
from benchmarks.running import RunningJob
from benchmarks.state_dump import bindings_of, write_input

__all__ = ["Sizes", "measure"]

_QUERIES: Final = {
    "an average of a state": "SELECT count(*) AS rooms, avg(setting.desired) AS value FROM state.thermostat",
    "groups by two states": (
        "SELECT sum(rooms)::BIGINT AS rooms, max(rooms) AS value FROM (SELECT round(setting.desired) AS desired, "
        "last_command IS NULL AS quiet, count(*) AS rooms FROM state.thermostat GROUP BY ALL)"
    ),
}
# How long the readings last for each query.
_LONGEST_S: Final = 15


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement.

    Micro-batches of `batch_rows` readings come every `interval_ms`. The first `warm_up` do not count; then `before` are
    counted before the first of the `queries` of each kind, with pauses of `pause_s` between them.
    """

    keys: int = 1_000_000
    batch_rows: int = 20_000
    interval_ms: int = 2_000
    warm_up: int = 20
    before: int = 30
    queries: int = 10
    pause_s: int = 5
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
        longest_s = _LONGEST_S + self.pause_s
        beside = len(_QUERIES) * self.queries * longest_s * 1_000 // self.interval_ms
        return self.settings_files + self.warm_up + self.before + beside


@dataclass(frozen=True)
class Query:
    """A query: its kind, the start and end of its process in seconds of the wall clock, and its CPU time."""

    kind: str
    began_s: float
    ended_s: float
    cpu_s: float


def ask(checkpoint: Path, kind: str, sizes: Sizes) -> Query:
    """Ask in a separate process. Raises RuntimeError if the answer is wrong."""
    newest, began_s, used_s = last_batch(checkpoint), time.time(), _ended_children_s()
    arguments = ["query", str(checkpoint), _QUERIES[kind], "-o", "json"]
    answer, _ = run_module("penstock.cli", arguments, checkpoint.with_suffix(".query.log"))
    ended_s = time.time()
    (row,) = answer["rows"]
    if row["rooms"] != sizes.keys or row["value"] is None or answer["batch"] < newest:
        raise RuntimeError(f"The answer after micro-batch {newest} of {sizes.keys} rooms is wrong: {answer}.")
    note({"kind": kind, "seconds": round(ended_s - began_s, 2), "batch": answer["batch"]})
    return Query(kind, began_s, ended_s, _ended_children_s() - used_s)


def _ended_children_s() -> float:
    """Return the CPU time of the processes that this one has awaited, of which the job is none until its end."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


class _JobCost:
    """The CPU time of a job for each of its micro-batches, over several spans of time; a context manager for each."""

    def __init__(self, job: RunningJob) -> None:
        self._job: Final = job
        self._batches = 0
        self._cpu_s = 0.0

    def __enter__(self) -> None:
        self._add(-1)

    def __exit__(self, *_: object) -> None:
        self._add(1)

    def _add(self, sign: int) -> None:
        self._batches += sign * last_batch(self._job.checkpoint)
        self._cpu_s += sign * TreeUsage.of(self._job.pid).cpu_s

    def each_ms(self) -> int:
        """Return the milliseconds of CPU time for each micro-batch."""
        return round(1000 * self._cpu_s / max(self._batches, 1))


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure. Raises RuntimeError if an answer is wrong."""
    write_input(work, sizes)
    options = ["--cores", str(sizes.cores), "--batch-interval-ms", str(sizes.interval_ms)]
    job = RunningJob(work, bindings_of(work), options)
    try:
        first = sizes.settings_files + sizes.warm_up
        job.await_true(
            "its counted micro-batches", lambda: last_batch(job.checkpoint) >= first + sizes.before
        )
        apart, during, queries = _JobCost(job), _JobCost(job), []
        for kind in list(_QUERIES) * sizes.queries:
            with apart:
                time.sleep(sizes.pause_s)
            with during:
                queries.append(ask(job.checkpoint, kind, sizes))
        beside = last_batch(job.checkpoint) + 1
        job.await_true("the micro-batch beside the last query", lambda: last_batch(job.checkpoint) >= beside)
    finally:
        account = job.end()
    batches = [b for b in account["batches"] if b["batch"] >= first and sum(b["rows"])]
    return {
        "keys": sizes.keys,
        "batch_rows": sizes.batch_rows,
        "interval_ms": sizes.interval_ms,
        "cores": sizes.cores,
        **times_beside(batches, [(query.began_s, query.ended_s) for query in queries], between=True),
        "before_cpu_ms": apart.each_ms(),
        "during_cpu_ms": during.each_ms(),
        "queries": {kind: _times(queries, kind) for kind in _QUERIES},
    }


def _times(queries: list[Query], kind: str) -> dict[str, float]:
    seconds = [query.ended_s - query.began_s for query in queries if query.kind == kind]
    cpu_s = statistics.median(query.cpu_s for query in queries if query.kind == kind)
    return {
        "median_s": round(statistics.median(seconds), 2),
        "longest_s": round(max(seconds), 2),
        "median_cpu_s": round(cpu_s, 2),
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    facts = {
        f"a micro-batch without a query, median of {result['batches_before']}": f"{result['before_ms']:,} ms",
        f"a micro-batch during queries, median of {result['batches_during']}": f"{result['during_ms']:,} ms",
        "ratio": f"{result['ratio']:.2f}",
        "CPU time of a micro-batch without a query": f"{result['before_cpu_ms']:,} ms",
        "CPU time of a micro-batch during queries": f"{result['during_cpu_ms']:,} ms",
        "ratio of CPU times": f"{result['during_cpu_ms'] / max(result['before_cpu_ms'], 1):.2f}",
    }
    for kind, times in result["queries"].items():
        facts[f"{kind}, the whole process: median"] = f"{times['median_s']:.2f} s"
        facts[f"{kind}: median CPU time"] = f"{times['median_cpu_s']:.2f} s"
        facts[f"{kind}: longest"] = f"{times['longest_s']:.2f} s"
    title = (
        f"Queries over {result['keys']:,} keys, one after the other, beside {result['batch_rows']:,} readings each "
        f"{result['interval_ms']:,} ms, {result['cores']} cores"
    )
    print_facts(title, facts)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
