"""The command line: output, stopping, and clear messages instead of stack traces for wrong use."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from job_in_session import JobInSession
from job_process import EXAMPLE, JobProcess, Result, await_true, cli, run_arguments
from pyspark.sql import SparkSession
from rooms import Record, Rooms, by_sensor, fold
from typer.testing import CliRunner

from penstock.bindings.parse import schemes
from penstock.cli import app
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from topics import produce, read_topic

JOB = """
import penstock as ps

job = ps.Job("{name}")
job.data_stream("readings", schema="sensor_id INT").sink_to("heaters")
"""


def define(**uris: object) -> list[str]:
    return [f"-D{name}={uri}" for name, uri in uris.items()]


# Wrong use


def here(*arguments: str) -> Result:
    """Run `penstock run` in this process; refused arguments start nothing."""
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Result(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    """Return valid bindings."""
    for name in ("readings", "settings"):
        (tmp_path / name).mkdir()
    return {name: f"jsonl:{tmp_path / name}" for name in ("readings", "settings", "heaters")}


def refused(result: Result, *parts: str, code: int = 2) -> None:
    """Check the exit code, and that there is one message with all parts and no stack trace."""
    assert result.code == code, result
    for part in parts:
        assert part in result.err, f"{part!r} is missing: {result.err}"
    assert "Traceback" not in result.out + result.err, result.err
    lines = [line for line in result.err.splitlines() if not line.startswith("Note: ")]
    message, _, forms = "\n".join(lines).partition("Allowed for ")
    assert message.startswith("Error: "), message
    assert len(message.strip().splitlines()) == 1, message
    assert len(message) < 500, "a sentence or two"
    assert len(forms.splitlines()) <= len(list(schemes("sink"))) + 1, "a line for each scheme"


def test_wrong_bindings_are_refused(good: dict[str, str], tmp_path: Path, kafka: KafkaBroker) -> None:
    """The message names the stream and the error; a missing or misspelt binding lists the valid forms."""

    def run(changes: Mapping[str, str | None]) -> Result:
        bindings = {name: uri for name, uri in {**good, **changes}.items() if uri is not None}
        return here(str(EXAMPLE), "--bounded", *define(**bindings))

    refused(run({"settings": None}), "Control stream 'settings' has no binding", "jsonl:DIR", "kafka://")
    refused(run({"reedings": "jsonl:/tmp"}), "no stream 'reedings'", "readings, settings, heaters")
    refused(run({"readings": "jsno:/tmp"}), "'readings'", "'jsno'", "did you mean json", "socket://HOST:PORT")
    refused(run({"readings": "console:"}), "'readings'", "console: is only for sinks", "jsonl:DIR")
    refused(run({"readings": "jsonl:/no/such/place"}), "'readings'", "/no/such/place", "does not exist")
    refused(run({"readings": f"jsonl:{EXAMPLE}"}), "'readings'", "is a file, not a directory")
    refused(run({"readings": f"{good['readings']}?max_files=1"}), "'readings'", "max_files_per_batch")
    topic = f"kafka://{kafka.bootstrap}/unheard-of"
    refused(run({"readings": topic}), "'readings'", "'unheard-of' does not exist", "create_topic=true")
    refused(
        run({"settings": "kafka://127.0.0.1:1/t"}),
        "'settings'",
        "no Kafka broker answers at 127.0.0.1:1",
        code=3,
    )
    refused(cli(str(EXAMPLE), "-D", "readings", folder=tmp_path), "'readings' is not of the form NAME=URI")


def test_wrong_job_files_are_refused(good: dict[str, str], tmp_path: Path) -> None:
    """A missing, broken, empty or ambiguous job file is named, with the line to look at."""

    def run(target: str, text: str | None = None) -> Result:
        path = tmp_path / target.partition(":")[0]
        if text is not None:
            path.write_text(text)
        return here(str(tmp_path / target), *define(**good))

    two = JOB.format(name="first") + "other = ps.Job('second')\n"
    refused(run("missing.py"), "no job file", "missing.py")
    refused(run("notes.txt", "x"), "notes.txt", "ends in .py")
    refused(run("broken.py", "import penstock as ps\njob = = 1\n"), "broken.py, line 2", "SyntaxError")
    refused(run("raises.py", "\n\n1 / 0\n"), "raises.py, line 3", "ZeroDivisionError")
    refused(run("imports.py", "import no_such_module\n"), "imports.py, line 1", "no_such_module")
    refused(run("empty.py", ""), "empty.py defines no job", "ps.Job('name')")
    refused(run("two.py", two), "defines several jobs", "two.py:job, other")
    refused(run("two.py:third"), "no job named 'third'", "job, other")
    refused(run("json.py", JOB.format(name="x")), "json.py", "rename it")


def test_wrong_checkpoints_and_settings_are_refused(good: dict[str, str], tmp_path: Path) -> None:
    """Refused are: an unwritable checkpoint, one of another job, and settings out of range."""

    def run(*arguments: str) -> Result:
        return here(str(EXAMPLE), "--bounded", *define(**good), *arguments)

    # Tests may run as root, who can write everywhere except into a file used as a folder.
    (tmp_path / "file").touch()
    refused(run(f"--checkpoint={tmp_path / 'file'}"), "checkpoint", "cannot be written", "--checkpoint")
    refused(run(f"--checkpoint={tmp_path / 'file' / 'below'}"), "checkpoint", "cannot be written")
    strange = tmp_path / "strange"
    (strange / "offsets").mkdir(parents=True)
    refused(run(f"--checkpoint={strange}"), "was not made by penstock", "--checkpoint")
    other = tmp_path / "other.py"
    other.write_text(JOB.format(name="other-job"))
    mine = f"--checkpoint={tmp_path / 'mine'}"
    # The first run gets as far as its master, by which time the checkpoint belongs to it.
    only = define(readings=good["readings"], heaters=good["heaters"])
    result = cli(str(other), "--bounded", *only, mine, "--master=spark://127.0.0.1:1", folder=tmp_path)
    refused(result, "127.0.0.1:1", code=3)
    refused(run(mine), "belongs to the job 'other-job', not 'temperature-control'")
    refused(run("--parallelism=0"), "parallelism is 0", "from 1 to")
    refused(run("--batch-interval=-5"), "batch interval is -5 ms")
    refused(run("--master=mesos://x"), "'mesos://x' is not a Spark master", "spark://HOST:PORT")
    words = run("--parallelism=many")
    assert words.code == 2
    assert "--parallelism" in words.err
    assert "valid integer" in words.err
    assert "Traceback" not in words.err


# Stopping


def test_ctrl_c_stops_a_job_between_micro_batches(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """It ends with exit code 0 and status `stopped` after showing progress. benchmarks/soak.py covers
    SIGTERM.

    It stops between two micro-batches, so even an at-least-once sink has each command once when the job was
    stopped during its readings and then continued to their end.
    """
    topics = {name: f"{name}-{time.time_ns()}" for name in ("readings", "settings", "heaters")}
    for topic in topics.values():
        kafka.create_topic(topic, 2)
    uris = {name: f"kafka://{kafka.bootstrap}/{topic}" for name, topic in topics.items()}
    checkpoint = tmp_path / "checkpoint"

    def run(max_records: int) -> RunSettings:
        readings = f"{uris['readings']}?start=earliest&max_records_per_batch={max_records}"
        return RunSettings(bindings={**uris, "readings": readings}, checkpoint=str(checkpoint), parallelism=2)

    rooms = Rooms(5)
    settings = rooms.first_settings()
    send(kafka, topics["settings"], settings)
    readings = [reading for _ in range(200) for reading in rooms.readings()]
    send(kafka, topics["readings"], readings)
    expected = fold([(settings, readings)])
    count = sum(map(len, expected.values()))

    with JobProcess([*run_arguments(EXAMPLE, run(200)), "-ojson"], tmp_path) as job:
        await_commits(checkpoint, job, 3)
        await_true(lambda: "batch " in job.err, lambda: "no progress is shown")
        job.press_ctrl_c()
        check_stopped(job)
        assert all(word in job.err for word in ("rows/s", "batch time", "lag"))
    assert 0 < len(read_topic(kafka.bootstrap, topics["heaters"])) < count, "stopped amid the readings"
    with JobInSession(spark, EXAMPLE, dataclasses.replace(run(100_000), bounded=True)) as rest:
        assert rest.wait().status == "finished"
    messages = read_topic(kafka.bootstrap, topics["heaters"], count)
    assert by_sensor(json.loads(message.value or b"") for message in messages) == expected


def send(kafka: KafkaBroker, topic: str, records: list[Record]) -> None:
    produce(kafka.bootstrap, topic, ((str(r["sensor_id"]).encode(), json.dumps(r).encode()) for r in records))


def await_commits(checkpoint: Path, job: JobProcess, count: int) -> None:
    """Wait for some more micro-batches."""
    before = len(list((checkpoint / "commits").glob("[0-9]*")))
    await_true(
        lambda: not job.running or len(list((checkpoint / "commits").glob("[0-9]*"))) >= before + count,
        lambda: f"no micro-batches: {job.err}",
    )
    assert job.running, job.err


def check_stopped(job: JobProcess) -> None:
    result = job.wait(60)
    job.await_end_of_family()
    assert result.code == 0, result
    summary: dict[str, Any] = result.summary
    assert summary["status"] == "stopped"
    assert summary["batches"] >= 1
    assert "Traceback" not in result.err, result.err


@pytest.mark.parametrize(("times", "code"), [pytest.param(1, 0, marks=pytest.mark.chaos), (2, 130)])
def test_ctrl_c_while_spark_starts(good: dict[str, str], tmp_path: Path, times: int, code: int) -> None:
    """Ctrl-C while Spark starts stops the job as soon as it has started; a second one ends it at once, with
    code 130.

    Neither leaves a process behind. A JSON log ends with what the run did.
    """
    arguments = [str(EXAMPLE), *define(**good), "--log-format=json", "-ojson"]
    with JobProcess(arguments, tmp_path) as job:
        # The JVM may exist earlier. The job has its id once its checkpoint is locked.
        await_true(lambda: job.jvms() and "temperature-control-" in job.out, lambda: f"no JVM: {job.err}")
        for _ in range(times):
            time.sleep(0.7)
            job.press_ctrl_c()
        result = job.wait(60)
        job.await_end_of_family()
    assert result.code == code, result
    assert "Traceback" not in result.err, result.err
    if code == 0:
        assert result.summary["status"] == "stopped"
        last = json.loads(result.err.splitlines()[-1])
        assert (last["job"], last["job_id"]) == ("temperature-control", result.summary["job_id"])
        assert last["message"].startswith("The job has stopped after ")
