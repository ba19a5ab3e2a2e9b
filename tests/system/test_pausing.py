"""A paused step holds its data in order, up to a bound; then the data streams are not read until it is resumed."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from job_process import JobProcess, await_true
from rooms import read_folder, write_file

from penstock.jobs.receipts import read_receipts
from penstock.local.kafka import KafkaBroker
from penstock.runtime.cuts import read_cuts
from topics import produce

JOB = Path(__file__).with_name("counting_job.py")
FILE = 50  # readings in one


def applied(checkpoint: Path) -> list[str]:
    """The commands that were applied."""
    return [r.id for _, receipts in read_receipts(checkpoint) for r in receipts if r.status == "APPLIED"]


def test_a_paused_step_stops_its_sources_and_loses_nothing(tmp_path: Path, kafka: KafkaBroker) -> None:
    """Commands go on meanwhile."""
    pause_and_resume("kafka", tmp_path, kafka, kills=False)


@pytest.mark.chaos
@pytest.mark.parametrize("data", ["folder", "kafka"])
def test_a_paused_job_that_is_killed_is_paused_again(data: str, tmp_path: Path, kafka: KafkaBroker) -> None:
    """Its sources stand still from the start."""
    pause_and_resume(data, tmp_path, kafka, kills=True)


def pause_and_resume(data: str, tmp_path: Path, kafka: KafkaBroker, *, kills: bool) -> None:
    """Pause, feed more than may be held, and resume; with a kill -9 in between."""
    checkpoint = tmp_path / "checkpoint"
    for name in ("readings", "sums", "seen", "checkpoint/commands"):
        (tmp_path / name).mkdir(parents=True)
    uri = f"jsonl:{tmp_path / 'readings'}?max_files_per_batch=1"
    if data == "kafka":
        topic = f"readings-{time.time_ns()}"
        kafka.create_topic(topic, 1)
        uri = f"kafka://{kafka.bootstrap}/{topic}?start=earliest&max_records_per_batch={FILE}"
    arguments = [
        str(JOB),
        f"-Dreadings={uri}",
        *(f"-D{name}=jsonl:{tmp_path / name}" for name in ("sums", "seen")),
        f"--checkpoint={checkpoint}",
        "--max-held-bytes=3000",
    ]
    sent = 0

    def feed(count: int) -> None:
        """Files of readings, or as many records on the topic."""
        nonlocal sent
        for _ in range(count):
            records = [{"sensor": number % 7, "number": number} for number in range(sent, sent + FILE)]
            sent += FILE
            if data == "folder":
                write_file(tmp_path / "readings", f"{sent:08}.jsonl", records)
            else:
                produce(kafka.bootstrap, topic, [(None, json.dumps(record).encode()) for record in records])

    def command(name: str, kind: str, **more: Any) -> None:
        write_file(checkpoint / "commands", f"{name}.jsonl", [{"id": name, "kind": kind, **more}])

    def seen() -> list[int]:
        return [record["number"] for record in read_folder(tmp_path / "seen")]

    def read() -> int:
        """How many readings are in a micro-batch by now."""
        end: Any = read_cuts(checkpoint)[-1].ends["readings"]
        return sum(end.values()) if isinstance(end, dict) else end * FILE

    feed(1)
    with contextlib.ExitStack() as jobs:
        job = jobs.enter_context(JobProcess(arguments, tmp_path))
        await_true(lambda: len(seen()) == FILE, lambda: job.err)
        command("1", "pause", target={"step": "sums"})
        await_true(lambda: "1" in applied(checkpoint), lambda: job.err)
        feed(20)
        held = await_standstill(read, job)
        assert FILE < held < sent
        assert len(seen()) == FILE
        if kills:
            job.signal(signal.SIGKILL)
            job.wait()
            jobs.close()
            job = jobs.enter_context(JobProcess(arguments, tmp_path))
        command("2", "add", target={"step": "sums", "key": 3}, payload=5)
        await_true(lambda: "2" in applied(checkpoint), lambda: job.err)
        assert len(seen()) == FILE
        assert read() == held
        command("3", "resume", target={"step": "sums"})
        await_true(lambda: len(seen()) == sent, lambda: f"{len(seen())} of {sent}: {job.err}")
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0
    assert in_order(seen()) == list(range(sent))
    # The command came before the readings that were held, which see what it did.
    totals = {
        record["number"]: record["total"]
        for record in read_folder(tmp_path / "seen")
        if record["sensor"] == 3
    }
    assert all(total == (5 if number >= FILE else 0) for number, total in totals.items())


def await_standstill(read: Callable[[], int], job: JobProcess) -> int:
    """Wait until nothing has been read for three seconds."""
    before, since = read(), time.monotonic()
    while time.monotonic() - since < 3:
        assert job.running, job.err
        if read() != before:
            before, since = read(), time.monotonic()
        time.sleep(0.05)
    return before


def in_order(numbers: Sequence[int]) -> list[int]:
    """All numbers sorted, after a check that those of each sensor came in order."""
    for sensor in range(7):
        mine = [number for number in numbers if number % 7 == sensor]
        assert mine == sorted(mine)
    return sorted(numbers)
