"""A small job whose checkpoint has all kinds of state files, and the script that runs it once.

The arguments of the script are the folder of the readings, that of the output, and the checkpoint.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import penstock as ps


@dataclass
class Reading:
    """A number of a sensor."""

    sensor: int
    number: int


@dataclass
class Seen:
    """How many readings of a sensor there were."""

    sensor: int
    count: int


class Counts(ps.ProcessFunction):
    """Counts the readings of each sensor."""

    count = ps.ValueState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        """Count one."""
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield Seen(reading.sensor, count)


job = ps.Job("recorded")
job.data_stream("readings", schema=Reading).key_by("sensor").process("counts", Counts()).sink_to("seen")

# Snapshots of the state often and soon, which Spark otherwise makes each minute.
_SNAPSHOTS = {
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
}


def main(readings: str, seen: str, checkpoint: str) -> None:
    """Run the job, and wait until each partition has a second snapshot."""
    from penstock.jobs.runner import JobRunner
    from penstock.jobs.settings import RunSettings
    from penstock.runtime.session import SessionSettings, open_session

    log = Path(checkpoint).parent / "spark.log"
    session = SessionSettings("recorded", "local[2]", 2, needs_kafka=False, log_file=log, more=_SNAPSHOTS)
    settings = RunSettings(
        bindings={"readings": f"jsonl:{readings}?max_files_per_batch=1", "seen": f"jsonl:{seen}"},
        bounded=True,
        checkpoint=checkpoint,
        parallelism=2,
        spark_settings=_SNAPSHOTS,
    )
    with open_session(session):
        JobRunner(job, settings, (Path(__file__),)).run()
        deadline = time.monotonic() + 60
        partitions = [Path(checkpoint) / "state" / "0" / str(number) for number in range(2)]
        while any(len(list(partition.glob("*.zip"))) < 2 for partition in partitions):
            assert time.monotonic() < deadline, "no snapshots"
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
