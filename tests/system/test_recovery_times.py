"""How long a managed job in real time is silent after a kill -9: from the kill to the first output of the
next run.

Other load on the machine lengthens that. So each time is also given without it: divided by the ratio of wall
time to CPU time of a fixed computation.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
import uuid
from pathlib import Path

import pytest
from job_process import await_true, busiest, kill, workers_among
from reliability import noting
from served import Served
from switch_topics import PARTITIONS, Reader, Sender, fold

from penstock.machine.kafka_broker import KafkaBroker
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import started_process

KILLS = 10
MOST_S = 15.0
# The commands of about ten seconds.
MANY = 1000
WORK_S = 0.5
DEFINITION = """
job: switch_job.py
bindings:
  readings: kafka://{servers}/{readings}?start=earliest
  heaters: kafka://{servers}/{heaters}?origin=true
parallelism: 2
master: local[2]
checkpoint_interval: 2s
restart: fixed-delay:attempts=100,delay=100ms
"""


class Recovery:
    """A managed job under continuous readings, and its recovery times."""

    def __init__(self, served: Served, reader: Reader) -> None:
        self._served = served
        self._reader = reader
        asked = served.client.post("/v1/jobs", json={"definition": "switch"}).raise_for_status()
        self._job_id: str = asked.json()["job"]

    def await_answers(self) -> None:
        """Wait until the job writes, and has committed something."""
        before = self._reader.count
        await_true(lambda: self._reader.read() and self._reader.count > before + 300, self._served.log)

    def time_s(self, victim: str) -> tuple[float, float]:
        """Kill a worker or the driver; return the seconds until the next run has written its first output.

        The second number is that time without other load on the machine.
        """
        slowness = measured_slowness()
        killed_s = self._kill(victim)
        # The processes of the previous run have ended; its last output arrives within a moment.
        begun_ms = time.time() * 1000
        await_true(
            lambda: self._reader.read() and self._reader.newest_ms > begun_ms,
            self._served.log,
        )
        took_s = self._reader.newest_ms / 1000 - killed_s
        return took_s, took_s / slowness

    def _kill(self, victim: str) -> float:
        """Kill until a run ends and another has begun; return the time of the last kill."""
        run = self._run
        while True:
            killed_s, before = time.time(), self._reader.count
            kill(self._pid(victim, run), signal.SIGKILL)
            await_true(
                lambda before=before: (
                    self._reader.read() is not None
                    and (self._run > run or self._reader.count > before + MANY)
                ),
                self._served.log,
            )
            # Between two intervals no Spark task fails with a worker, and the run continues with new engines.
            if self._run > run:
                return killed_s

    def _pid(self, victim: str, run: int) -> int:
        if victim == "worker":
            return busiest(workers_among(self._served.processes()))
        begun = started_process(ServerDirectory(self._served.home).run(self._job_id, run))
        assert begun is not None
        return begun.pid

    @property
    def _run(self) -> int:
        found: int = self._served.job(self._job_id)["run"]
        return found


def measured_slowness() -> float:
    """Return the ratio of wall time to CPU time of a computation."""
    begun_s, worked_s = time.perf_counter(), time.thread_time()
    while time.thread_time() - worked_s < WORK_S:
        pass
    return (time.perf_counter() - begun_s) / (time.thread_time() - worked_s)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_job_in_real_time_answers_again_within_15_seconds(kafka: KafkaBroker, tmp_path: Path) -> None:
    """A worker and the driver are killed; a reader that deduplicates by origin has each command once."""
    topics = [f"recovery-{part}-{uuid.uuid4().hex[:8]}" for part in ("in", "out")]
    for topic in topics:
        kafka.create_topic(topic, PARTITIONS)
    definition = DEFINITION.format(servers=kafka.bootstrap, readings=topics[0], heaters=topics[1])
    served = Served(tmp_path, "switch_job.py", definition, {})
    found: dict[str, list[tuple[float, float]]] = {"worker": [], "driver": []}
    reader = Reader(kafka, topics[1])
    try:
        with noting("recovery in real time", "-k answers_again_within", "") as injected:
            with Sender(kafka, topics[0], 31) as sender:
                recovery = Recovery(served, reader)
                for number in range(KILLS):
                    victim = ("worker", "driver")[number % 2]
                    recovery.await_answers()
                    injected.add(f"kill -9 of a {victim} in real time")
                    found[victim].append(recovery.time_s(victim))
            expected = fold(sender.readings)
            await_true(lambda: reader.read() is not None and reader.by_numbers == expected, served.log)
            for some in found.values():
                assert statistics.median(alone_s for _, alone_s in some) < MOST_S, found
    finally:
        reader.close()
        served.close()
    note(found)


def note(found: dict[str, list[tuple[float, float]]]) -> None:
    """Store the times with the other results of `make chaos`, and print them."""
    times = {
        victim: [
            {"seconds": round(took_s, 1), "alone": round(alone_s, 1)} for took_s, alone_s in sorted(some)
        ]
        for victim, some in found.items()
    }
    print(json.dumps(times))
    folder = os.environ.get("PENSTOCK_CHAOS_RESULTS")
    if folder:
        (Path(folder) / "recovery.json").write_text(json.dumps(times) + "\n")
