"""The process of an engine in real time: its priority, and what becomes of it when it or another process is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

from job_process import JobProcess, await_true, kill, run_arguments
from switch_topics import JOB, Reader, Sender, switch_settings

from penstock.machine.kafka_broker import KafkaBroker


def test_an_engine_has_a_process_of_its_own_that_no_killed_process_leaves_behind(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """The engine is killed, then its workers, then the driver, each in another run."""
    found, readings, heaters = switch_settings(kafka, tmp_path, 1000)
    settings = dataclasses.replace(found, parallelism=1)
    reader = Reader(kafka, heaters)

    def start() -> JobProcess:
        return JobProcess(run_arguments(JOB, settings), tmp_path)

    def await_engine(job: JobProcess) -> int:
        reader.read_all()
        before = reader.count
        await_true(
            lambda: (reader.read() and reader.count > before + 100 and job.engines()) or not job.running,
            lambda: f"no commands: {job.out} {job.err}",
        )
        assert job.running, f"it ended: {job.out} {job.err}"
        (found,) = job.engines()
        return found

    with Sender(kafka, readings, 7):
        with start() as job:
            engine = await_engine(job)
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, engine) == own
            # One that no task has used yet has the priority with which it began.
            assert max(own, 10) in [os.getpriority(os.PRIO_PROCESS, pid) for pid in job.workers()]
            kill(engine, signal.SIGKILL)
            # Between two intervals no task is lost with it, and the run continues.
            await_true(
                lambda: not job.running or set(job.engines()) - {engine}, lambda: "neither ended nor went on"
            )
            if not job.running:
                assert "it was killed, perhaps by the system because memory ran out" in job.err
                job.await_end_of_family()
        with start() as job:
            engine = await_engine(job)
            for pid in job.workers():
                if pid != engine:
                    kill(pid, signal.SIGKILL)
            await_true(lambda: engine not in job.engines(), lambda: f"it is left: {job.engines()}", 10.0)
        with start() as job:
            await_engine(job)
            job.signal(signal.SIGKILL)
            job.wait()
            job.await_end_of_family()
    reader.close()
