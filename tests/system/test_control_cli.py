"""`penstock control` with real jobs: commands sent from other processes, while the job runs and while it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from job_process import JobProcess, Result, await_true
from rooms import read_folder, write_file

from penstock.local.kafka import KafkaBroker

JOB = """
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

job = ps.Job("limits")


@dataclass
class Reading:
    sensor: int


@dataclass
class Bound:
    sensor: int
    bound: int | None


class Limits(ps.ProcessFunction):
    limit = ps.ValueState(int)

    @ps.on_command("limit")
    def set_limit(self, limit: int, ctx: ps.CommandContext) -> None:
        if limit == 13:
            raise ValueError("thirteen")
        ctx.reply({"was": self.limit.get()})
        self.limit.set(limit)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Bound]:
        yield Bound(reading.sensor, self.limit.get())


readings = job.data_stream("readings", schema=Reading)
readings.key_by("sensor").process("limits", Limits()).sink_to("bounds")
"""


class Operator:
    """Somebody at a terminal, who names the checkpoint once."""

    def __init__(self, checkpoint: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._environment = {**inherited, "PENSTOCK_CHECKPOINT": str(checkpoint)}

    def control(self, *arguments: str) -> Result:
        command = [sys.executable, "-m", "penstock.cli", "control", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=200)
        assert "Traceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    def limit(self, key: int, value: object, *more: str) -> Result:
        payload = json.dumps(value)
        return self.control("send", "--kind=limit", f"--target=limits/{key}", f"--json={payload}", *more)

    def story(self, command_id: str) -> dict[str, Any]:
        """What status says, which is what history says."""
        story = self.control("status", command_id, "-ojson").summary
        lines = self.control("history", "--last=100", "-ojson").out.splitlines()
        (listed,) = [receipt for receipt in map(json.loads, lines) if receipt["id"] == command_id]
        assert story["receipts"][-1] == listed
        assert story["status"] == listed["status"]
        return story


@pytest.mark.parametrize("place", [pytest.param("folder", marks=pytest.mark.chaos), "kafka"])
def test_commands_reach_a_job_from_another_process(place: str, tmp_path: Path, request: Any) -> None:
    """Each ends with its status as the exit code; what is sent while the job is stopped is applied after its start."""
    (tmp_path / "limits.py").write_text(JOB)
    for name in ("readings", "bounds"):
        (tmp_path / name).mkdir()
    checkpoint = tmp_path / "checkpoint"
    arguments = [
        str(tmp_path / "limits.py"),
        f"-Dreadings=jsonl:{tmp_path / 'readings'}",
        f"-Dbounds=jsonl:{tmp_path / 'bounds'}",
        f"--checkpoint={checkpoint}",
        "--parallelism=2",
    ]
    if place == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        topic = f"commands-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(topic, partitions=2)
        arguments.append(f"-Dcommands=kafka://{kafka.bootstrap}/{topic}?format=protobuf")
    operator = Operator(checkpoint)
    with JobProcess(arguments, tmp_path) as job:
        await_true((checkpoint / "control.json").exists, lambda: f"it does not start: {job.err}")
        applied = operator.limit(1, 5, "--wait", "--timeout=150", "-ojson")
        assert (applied.code, applied.summary["status"]) == (0, "APPLIED"), applied
        assert applied.summary["details"] == [[1, {"was": None}]]
        rejected = operator.limit(1, "five", "--wait", "--id=wrong")
        assert (rejected.code, rejected.out) == (3, "wrong\n"), rejected
        assert "REJECTED" in rejected.err
        assert "the payload does not fit" in rejected.err
        degraded = operator.limit(1, 13, "--wait", "-ojson")
        assert (degraded.code, degraded.summary["reason"]) == (4, "ValueError: thirteen"), degraded
        assert operator.limit(1, 5, "--wait", "--id=wrong").code == 3, "the job took the id a second time"
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0
    late = operator.limit(2, 7, "--id=late", "--wait", "--timeout=0.5")
    assert (late.code, late.out) == (5, "late\n")
    waiting = operator.control("status", "late")
    if place == "folder":
        assert (waiting.code, waiting.out) == (0, "late: sent, no receipt yet\n")
    else:
        assert waiting.code == 2
        assert "is not looked through" in waiting.err
    with JobProcess(arguments, tmp_path) as job:
        again = operator.limit(3, 8, "--wait", "--timeout=150", "-ojson")
        assert again.code == 0, again
        await_true(lambda: operator.control("status", "late").out.count("APPLIED"), lambda: job.err)
        write_file(tmp_path / "readings", "1.jsonl", [{"sensor": number} for number in (1, 2, 3, 4)])
        await_true(lambda: len(read_folder(tmp_path / "bounds")) == 4, lambda: job.err)
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0
    bounds = {record["sensor"]: record["bound"] for record in read_folder(tmp_path / "bounds")}
    assert bounds == {1: 5, 2: 7, 3: 8, 4: None}
    ids = [applied.summary["id"], "wrong", degraded.summary["id"], "late", again.summary["id"]]
    statuses = [operator.story(command_id)["status"] for command_id in ids]
    assert statuses == ["APPLIED", "REJECTED", "DEGRADED", "APPLIED", "APPLIED"]
    assert operator.control("history", "--step=limits", "--kind=limit", "-ojson").out.count("\n") == 5
