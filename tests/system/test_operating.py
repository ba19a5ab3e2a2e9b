"""A job as its operators see it, over a kill -9: commands from other processes, metrics, logs, and the audit
trail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, Result, await_true, run_arguments
from prometheus_client.parser import text_string_to_metric_families
from promtool import find_promtool, promtool
from pyspark.sql import SparkSession
from reliability import Injected, noting
from rooms import read_folder, write_file
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.commit import RunSummary
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker

JOB = """
import logging
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
        print(f"printed {limit}")
        logging.getLogger("of the job").warning("logged %s", limit)
        ctx.reply({"was": self.limit.get()})
        self.limit.set(limit)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Bound]:
        yield Bound(reading.sensor, self.limit.get())


readings = job.data_stream("readings", schema=Reading)
readings.key_by("sensor").process("limits", Limits()).sink_to("bounds")
"""
READ = ("penstock_records_in_total", "readings")


class Operator:
    """A user at a terminal, who names the checkpoint once."""

    def __init__(self, checkpoint: Path) -> None:
        self._environment = {"PENSTOCK_CHECKPOINT": str(checkpoint)}

    def control(self, *arguments: str) -> Result:
        return here("control", *arguments, environment=self._environment)

    def as_process(self, *arguments: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *arguments],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def limit(self, key: int, value: object, *more: str) -> Result:
        return self.control(*limit_command(key, value), *more)

    def history(self, command_id: str) -> dict[str, Any]:
        """Return the history of commands, on which `status` and `history` must agree."""
        history = self.control("status", command_id, "-ojson").summary
        lines = self.control("history", "--last=100", "-ojson").out.splitlines()
        (listed,) = [receipt for receipt in map(json.loads, lines) if receipt["id"] == command_id]
        assert history["receipts"][-1] == listed
        assert history["status"] == listed["status"]
        return history


def here(*arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    """Run a command of the command line in this process, which is not the job's."""
    done = CliRunner().invoke(app, arguments, env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


def told(*arguments: str) -> str:
    """Return the output of a command that succeeds."""
    result = here(*arguments)
    assert result.code == 0, result
    return result.out


def limit_command(key: int, value: object) -> list[str]:
    return ["send", "--kind=limit", f"--target=limits/{key}", f"--json={json.dumps(value)}"]


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return all complete lines, each of which must be a JSON object."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def address(job: JobProcess | JobInSession) -> str:
    """Return the address at which the job serves its metrics."""
    await_true(lambda: "/metrics" in job.err or not job.running, lambda: job.err)
    return re.findall(r"http://\S+/metrics", job.err)[0]


def scraped(url: str) -> dict[tuple[str, str], float]:
    """Return the values that Prometheus would get, by name and by the label other than the job's name."""
    return {
        (
            sample.name,
            next((value for name, value in sample.labels.items() if name != "job_name"), ""),
        ): sample.value
        for family in text_string_to_metric_families(page(url).decode())
        for sample in family.samples
    }


def page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:  # on this machine
        found: bytes = response.read()
    return found


@pytest.mark.parametrize("place", [pytest.param("folder", marks=pytest.mark.chaos), "kafka"])
def test_a_job_is_steered_watched_and_on_record_over_a_kill(
    place: str, tmp_path: Path, request: pytest.FixtureRequest, spark: SparkSession
) -> None:
    """Each command ends with its status as the exit code, also one that is sent while the job does not run.

    Metrics by HTTP and in the checkpoint agree, and Prometheus' own tool finds nothing to say of their names, types
    and texts. Who did what is told, and logs are lines of JSON, which have what functions print.
    """
    with noting("steered jobs", f'-k "on_record_over_a_kill and {place}"') as injected:
        steer_over_a_kill(place, tmp_path, request, spark, injected)


def steer_over_a_kill(
    place: str, tmp_path: Path, request: pytest.FixtureRequest, spark: SparkSession, injected: Injected
) -> None:
    """Run the job twice, the first run being killed; the second one is in the shared session."""
    (tmp_path / "limits.py").write_text(JOB)
    for name in ("readings", "bounds"):
        (tmp_path / name).mkdir()
    checkpoint = tmp_path / "checkpoint"
    bindings = {name: f"jsonl:{tmp_path / name}" for name in ("readings", "bounds")}
    if place == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        topic = f"commands-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(topic, partitions=2)
        bindings["commands"] = f"kafka://{kafka.bootstrap}/{topic}?format=protobuf"
    settings = RunSettings(
        bindings=bindings, checkpoint=str(checkpoint), parallelism=2, metrics_bind="127.0.0.1:0"
    )
    job_file = tmp_path / "limits.py"
    arguments = run_arguments(job_file, settings)
    arguments += ["--metrics-bind", "127.0.0.1:0", "--log-format", "json", "-ojson"]
    operator = Operator(checkpoint)

    with JobProcess(arguments, tmp_path) as job:
        url = address(job)
        statuses = send_of_each_status(operator, checkpoint, job)
        write_file(tmp_path / "readings", "1.jsonl", [{"sensor": number} for number in (1, 1, 5)])
        await_true(lambda: scraped(url)[READ] == 3, lambda: f"{scraped(url)} {job.err}")

        def recorded() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(told("metrics", str(checkpoint), "-ojson"))
            return found

        # They are in the file a moment after Prometheus gets them.
        await_true(lambda: recorded()["metrics"]["totals"]["records_in"]["readings"] == 3, lambda: job.err)
        check_metrics(scraped(url), recorded())
        (tmp_path / "metrics.txt").write_bytes(page(url))
        logged = check_log(job, checkpoint)
        injected.add("kill -9 of a driver")
        job.signal(signal.SIGKILL)
        job.await_end_of_family()
    with pytest.raises(OSError, match="refused"):
        scraped(url)

    late = operator.limit(2, 7, "--id=late", "--wait", "--timeout=0.5")
    assert (late.code, late.out) == (5, "late\n")
    waiting = operator.control("status", "late")
    if place == "folder":
        assert (waiting.code, waiting.out) == (0, "late: sent, no receipt yet\n")
    else:
        assert waiting.code == 2
        assert "were not searched" in waiting.err

    with JobInSession(spark, job_file, settings) as job:
        url = address(job)
        again = operator.limit(3, 8, "--wait", "--timeout=150", "-ojson")
        assert again.code == 0, again
        await_true(lambda: operator.control("status", "late").out.count("APPLIED"), lambda: job.err)
        write_file(tmp_path / "readings", "2.jsonl", [{"sensor": number} for number in (1, 2, 3, 4)])
        # Counters restart with each run.
        await_true(lambda: scraped(url)[READ] == 4, lambda: f"{scraped(url)} {job.err}")
        assert scraped(url)["penstock_step_keys", "limits"] == 3
        # From this process, a job that runs in it looks like one that has ended.
        asked = operator.as_process("stop", str(checkpoint))
        assert asked.code == 0, asked
        stopped = job.wait()
    assert stopped.status == "stopped"
    bounds = [(record["sensor"], record["bound"]) for record in read_folder(tmp_path / "bounds")]
    assert sorted(bounds[:3], key=str) == [(1, 5), (1, 5), (5, None)]
    assert dict(bounds[3:]) == {1: 5, 2: 7, 3: 8, 4: None}
    statuses |= {"late": "APPLIED", again.summary["id"]: "APPLIED"}
    assert {command_id: operator.history(command_id)["status"] for command_id in statuses} == statuses
    assert operator.control("history", "--step=limits", "--kind=limit", "-ojson").out.count("\n") == 5
    check_record(logged, stopped, checkpoint)
    # This comes last, since it skips the test where the tool is missing.
    with (tmp_path / "metrics.txt").open("rb") as metrics:
        promtool(find_promtool(tmp_path), "check", "metrics", stdin=metrics)


def send_of_each_status(operator: Operator, checkpoint: Path, job: JobProcess) -> dict[str, str]:
    """Send commands that are applied, rejected and degraded; return their ids by status."""
    await_true((checkpoint / "control.json").exists, lambda: f"it does not start: {job.err}")
    # The first one runs in a process of its own.
    applied = operator.as_process("control", *limit_command(1, 5), "--wait", "--timeout=150", "-ojson")
    assert (applied.code, applied.summary["status"]) == (0, "APPLIED"), applied
    assert applied.summary["details"] == [[1, {"was": None}]]
    rejected = operator.limit(1, "five", "--wait", "--id=wrong")
    assert (rejected.code, rejected.out) == (3, "wrong\n"), rejected
    assert "REJECTED" in rejected.err
    assert "the payload does not fit" in rejected.err
    degraded = operator.limit(1, 13, "--wait", "-ojson")
    assert (degraded.code, degraded.summary["reason"]) == (4, "ValueError: thirteen"), degraded
    assert operator.limit(1, 5, "--wait", "--id=wrong").code == 3, "the job took the id a second time"
    return {applied.summary["id"]: "APPLIED", "wrong": "REJECTED", degraded.summary["id"]: "DEGRADED"}


def check_metrics(page: dict[tuple[str, str], float], found: dict[str, Any]) -> None:
    """Check that Prometheus gets the values in the checkpoint."""
    assert found["running"]
    newest = found["metrics"]
    assert page["penstock_running", ""] == 1
    assert page["penstock_step_keys", "limits"] == newest["steps"]["limits"]["keys"] == 1
    assert page["penstock_records_out_total", "bounds"] == newest["totals"]["records_out"]["bounds"] == 3
    assert page["penstock_lag_files", "readings"] == 0


def check_log(job: JobProcess, checkpoint: Path) -> str:
    """Check the log of a run, which has what functions print and log, as does a file; return the run's id."""
    wanted = {"printed 5", "logged 5"}

    def printed() -> set[str]:
        return {each["message"] for each in lines_of(job.err) if each["logger"] == "penstock.jobs.output"}

    await_true(lambda: wanted <= printed() or not job.running, lambda: f"{printed()} {job.err}")
    assert wanted <= set((checkpoint / "output.log").read_text().splitlines())
    logged = lines_of(job.err)
    assert {each["job"] for each in logged} == {"limits"}
    (job_id,) = {each["job_id"] for each in logged}
    return job_id


def check_record(killed: str, stopped: RunSummary, checkpoint: Path) -> None:
    """Check that there are the events of both runs, and that none runs now."""
    events = [json.loads(line) for line in told("events", str(checkpoint), "-ojson").splitlines()]
    # Without those of commands.
    runs = [event for event in events if event["event"] != "commands"]
    assert len(runs) < len(events)
    assert [event["event"] for event in runs] == ["started", "started", "stopped"]
    first, second, end = runs
    assert second["details"]["interrupted"] == first["job_id"] == killed
    assert end["job_id"] == second["job_id"] == stopped.job_id
    assert end["details"] == {"how": "request", "drain": False}
    assert end["by"] == first["by"] != ""
    assert not json.loads(told("metrics", str(checkpoint), "-ojson"))["running"]
