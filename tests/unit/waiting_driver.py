"""A driver without Spark whose tasks wait rather than compute: it takes a load, writes metrics, and can be rescaled.

Its definition's job file names a file with the load, in records per second, which a test changes as it likes. One task
does 1,000 records per second, and micro-batches begin 0.1 s apart.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from small_metrics import metrics_of_batch

from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.jobs.requests import Answer, Request, Requests
from penstock.metrics.batch_metrics import BatchMetricsWriter, Lag, StepBatchMetrics, Totals
from penstock.server.runs.driver import Launch
from penstock.server.runs.processes import (
    ALIVE_VARIABLE,
    BEGUN_FILE,
    ENDED_FILE,
    LAUNCH_FILE,
    PROGRESS_FILE,
    Ended,
    process_of,
)

TASK_RATE = 1000.0
FIXED_S = 0.02
INTERVAL_S = 0.1
DOWNTIME_S = 0.3
KEY_GROUPS = 128
CORES = 16


def main() -> None:
    folder = Path(sys.argv[1])
    launch = msgspec.json.decode((folder / LAUNCH_FILE).read_bytes(), type=Launch)
    os.set_inheritable(int(os.environ.pop(ALIVE_VARIABLE)), False)
    write_atomically(folder / BEGUN_FILE, msgspec.json.encode(process_of(os.getpid())))
    checkpoint = Checkpoint(Path(launch.settings["checkpoint"]))
    checkpoint.folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.stored_lineage() is None:
        checkpoint.begin(Lineage("a", "wait", KEY_GROUPS, launch.settings["parallelism"] or 1, ("visits",)))

    def end(*_: object) -> None:
        write_atomically(folder / ENDED_FILE, msgspec.json.encode(Ended("stopped", "a signal")))
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    job = WaitingJob(checkpoint, Path(Path(str(launch.file)).read_text().strip()), launch.run)
    write_atomically(folder / PROGRESS_FILE, b"{}")
    while True:
        job.batch()


class WaitingJob:
    """The job at work."""

    def __init__(self, checkpoint: Checkpoint, load: Path, run: int) -> None:
        self._checkpoint = checkpoint
        self._load = load
        self._job_id = f"wait-{run}"
        self._tasks = checkpoint.known_lineage().parallelism
        self._requests = Requests(checkpoint.folder, run)
        self._writer = BatchMetricsWriter(checkpoint.folder)
        self._waiting = 0.0
        self._seen_s = self._begun_s = self._ended_s = time.time()
        self._totals = Totals(phases={}, records_in={"visits": 0})

    def batch(self) -> None:
        """One micro-batch, and what was asked meanwhile.

        Its times are those that it would have on a machine that is never busy; the clock is only waited for.
        """
        begun_s = max(self._begun_s + INTERVAL_S, self._ended_s)
        self._arrive(begun_s)
        records, self._waiting = int(self._waiting), self._waiting % 1
        busy_s = FIXED_S + records / (TASK_RATE * min(self._tasks, CORES))
        self._begun_s, self._ended_s = begun_s, begun_s + busy_s
        self._arrive(self._ended_s)
        time.sleep(max(0.0, self._ended_s - time.time()))
        self._write(begun_s, records, busy_s)
        request = self._requests.next()
        if request is not None:
            self._rescale(request)

    def _arrive(self, now_s: float) -> None:
        self._waiting += (now_s - self._seen_s) * float(self._load.read_text())
        self._seen_s = now_s

    def _rescale(self, request: Request) -> None:
        before = self._tasks
        self._ended_s += DOWNTIME_S
        lineage = msgspec.structs.replace(self._checkpoint.known_lineage(), parallelism=request.parallelism)
        self._checkpoint.begin(lineage)
        self._tasks = request.parallelism
        details = {"before": before, "after": self._tasks, "downtime_s": DOWNTIME_S}
        self._requests.answer(request, Answer(details=details))

    def _write(self, begun_s: float, records: int, busy_s: float) -> None:
        totals = self._totals
        phases = {"processing": busy_s - FIXED_S / 2, "planning": FIXED_S / 2}
        self._totals = Totals(
            batches=totals.batches + 1,
            busy_seconds=totals.busy_seconds + busy_s,
            phases={name: totals.phases.get(name, 0.0) + phase for name, phase in phases.items()},
            records_in={"visits": totals.records_in["visits"] + records},
        )
        self._writer.append(
            metrics_of_batch(
                totals.batches,
                dt.datetime.fromtimestamp(begun_s, dt.UTC),
                busy_s,
                job="wait",
                job_id=self._job_id,
                phases=phases,
                parallelism=self._tasks,
                cores=CORES,
                records_in={"visits": records},
                lag={"visits": Lag(records=int(self._waiting))},
                steps={"wait": StepBatchMetrics(records=records, skew=1.0)},
                totals=self._totals,
            )
        )


if __name__ == "__main__":
    main()
