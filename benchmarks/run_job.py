"""Run a penstock job in this process and report, as a JSON line, the time spent on each micro-batch.

This is not a benchmark by itself: the benchmarks start it, so that each run has a fresh JVM and fresh workers; tests of
their small forms call `run`. It runs a job as `penstock run` does, and also collects Spark's own account of each
micro-batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.base.durations import milliseconds
from penstock.bindings.parse import split_definition
from penstock.jobs.job_loader import load_job
from penstock.jobs.runner import JobRunner, Progress, RunHooks
from penstock.jobs.settings import RunSettings
from penstock.spark.query import Query, start_query

__all__ = ["main", "run"]

# Polling more often would take time from the job; Spark keeps the accounts of the last 100 micro-batches.
_LOOK_EVERY_S: Final = 2.0


class _Accounts:
    """Spark's own accounts of each micro-batch, over all successive queries of a run."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, Any]] = {}
        self._query: StreamingQuery | None = None
        self._looked = 0.0

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track each query that starts within the block."""

        def start(session: SparkSession, query: Query) -> StreamingQuery:
            self._take()
            self._query = start_query(session, query)
            return self._query

        with mock.patch("penstock.jobs.query_run.start_query", start):
            yield

    def look(self, progress: Progress) -> None:
        """Take the newest accounts; called while the job runs, and once after its last micro-batch."""
        if self._query is None or (self._query.isActive and time.monotonic() - self._looked < _LOOK_EVERY_S):
            return
        self._looked = time.monotonic()
        print(f"batch {progress.batch_id}, {progress.rows_per_s:,.0f} rows/s", file=sys.stderr, flush=True)
        self._take()

    def _take(self) -> None:
        for report in self._query.recentProgress if self._query is not None else ():
            states = report["stateOperators"]
            self.batches[report["batchId"]] = {
                "batch": report["batchId"],
                "began": report["timestamp"],
                "rows": [source["numInputRows"] for source in report["sources"]],
                "ms": dict(report["durationMs"]),
                "state_ms": [{"update": s["allUpdatesTimeMs"], "commit": s["commitTimeMs"]} for s in states],
            }


def run(given: Sequence[str], stop: threading.Event | None = None) -> dict[str, Any]:
    """Run the job of the arguments, to its end or until it is asked to stop; return its account."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("-D", dest="bindings", action="append", default=[])
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--cores", type=int, help="default: as for penstock run")
    parser.add_argument("--state-memory-mb", type=int, help="default: as for penstock run")
    parser.add_argument("--receipts-mb", type=int, help="default: as for penstock run")
    parser.add_argument("--batch-interval-ms", type=int, default=0)
    parser.add_argument("--checkpoint-interval", default="0s")
    parser.add_argument("--allow-read", action="append", default=[])
    parser.add_argument("--spark", action="append", default=[], help="NAME=VALUE, a Spark setting")
    arguments = parser.parse_args(given)
    loaded = load_job(arguments.job)
    settings = RunSettings(
        bindings=dict(split_definition(text) for text in arguments.bindings),
        bounded=arguments.bounded,
        checkpoint=str(arguments.checkpoint),
        batch_interval_ms=arguments.batch_interval_ms,
        checkpoint_interval_ms=milliseconds(arguments.checkpoint_interval, "--checkpoint-interval"),
        master=f"local[{arguments.cores or '*'}]",
        allow_read=arguments.allow_read,
        spark_settings=dict(text.split("=", 1) for text in arguments.spark),
    )
    if arguments.state_memory_mb is not None:
        settings = dataclasses.replace(settings, state_memory_mb=arguments.state_memory_mb)
    if arguments.receipts_mb is not None:
        settings = dataclasses.replace(settings, receipts_mb=arguments.receipts_mb)
    accounts = _Accounts()
    with accounts.track():
        summary = JobRunner(loaded.job, settings, loaded.code).run(stop, RunHooks(on_progress=accounts.look))
    return {
        "records_in": summary.records_in,
        "records_out": summary.records_out,
        "dead_letters": summary.dead_letters,
        "batches": [accounts.batches[number] for number in sorted(accounts.batches)],
    }


def main() -> None:
    """Run the job of the command line, and print its account."""
    print(json.dumps(run(sys.argv[1:])), flush=True)


if __name__ == "__main__":
    main()
