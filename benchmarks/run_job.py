"""Run a penstock job in this process and report, as a JSON line, what each micro-batch spent.

Not a benchmark of its own: the benchmarks start it, so that each run has a fresh JVM and fresh workers. It runs a job
as `penstock run` does, and listens to Spark's own account of each micro-batch besides.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.bindings import split_definition
from penstock.jobs.loading import load_job
from penstock.jobs.runner import JobRunner, Progress
from penstock.jobs.settings import RunSettings

__all__ = ["main"]

# Asking more often would take time from the job; Spark keeps the accounts of the last 100 micro-batches.
_LOOK_EVERY_S: Final = 2.0


class _Accounts:
    """Spark's own account of each micro-batch."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, Any]] = {}
        self._query: StreamingQuery | None = None
        self._looked = 0.0

    def look(self, progress: Progress) -> None:
        """Take the newest accounts; called while the job runs, and once behind its last micro-batch."""
        session = SparkSession.getActiveSession()
        if session is not None and self._query is None:
            # Kept, since a query that has ended is no longer among the active ones.
            self._query = next(iter(session.streams.active), None)
        if self._query is None or (self._query.isActive and time.monotonic() - self._looked < _LOOK_EVERY_S):
            return
        self._looked = time.monotonic()
        print(f"batch {progress.batch_id}, {progress.rows_per_s:,.0f} rows/s", file=sys.stderr, flush=True)
        for report in self._query.recentProgress:
            states = report["stateOperators"]
            self.batches[report["batchId"]] = {
                "batch": report["batchId"],
                "began": report["timestamp"],
                "rows": [source["numInputRows"] for source in report["sources"]],
                "ms": dict(report["durationMs"]),
                "state_ms": [{"update": s["allUpdatesTimeMs"], "commit": s["commitTimeMs"]} for s in states],
            }


def main() -> None:
    """Run the job of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("-D", dest="bindings", action="append", default=[])
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--cores", type=int, help="default: as for penstock run")
    parser.add_argument("--state-memory-mb", type=int, help="default: as for penstock run")
    parser.add_argument("--batch-interval-ms", type=int, default=0)
    parser.add_argument("--spark", action="append", default=[], help="NAME=VALUE, a Spark setting")
    arguments = parser.parse_args()
    loaded = load_job(arguments.job)
    settings = RunSettings(
        bindings=dict(split_definition(text) for text in arguments.bindings),
        bounded=arguments.bounded,
        checkpoint=str(arguments.checkpoint),
        batch_interval_ms=arguments.batch_interval_ms,
        master=f"local[{arguments.cores or '*'}]",
        spark_settings=dict(text.split("=", 1) for text in arguments.spark),
    )
    if arguments.state_memory_mb is not None:
        settings = dataclasses.replace(settings, state_memory_mb=arguments.state_memory_mb)
    accounts = _Accounts()
    summary = JobRunner(loaded.job, settings, loaded.code).run(on_progress=accounts.look)
    result = {
        "records_in": summary.records_in,
        "records_out": summary.records_out,
        "dead_letters": summary.dead_letters,
        "batches": [accounts.batches[number] for number in sorted(accounts.batches)],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
