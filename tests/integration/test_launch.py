"""Jobs that are run from Python, in the shared session and in a program of their own."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from launch_job import Alarm, Limit, Reading, job
from pyspark.sql import SparkSession

from penstock.checkpoints.ownership import LOCK_FILE, lock_for_jvm
from penstock.errors import (
    BindingError,
    CheckpointError,
    CommandRefusedError,
    JobDefinitionError,
    PenstockError,
)

LIMITS = [Limit(1, 25.0), Limit(2, 30.0)]
READINGS = [Reading(1, 24.0), Reading(1, 26.0), Reading(2, 29.0), Reading(2, 31.0)]
ALARMS = [Alarm(1, 26.0), Alarm(2, 31.0)]


def in_order(alarms: list[Alarm]) -> list[Alarm]:
    return sorted(alarms, key=lambda alarm: (alarm.room, alarm.temperature))


@pytest.mark.parametrize(
    "readings",
    [
        # In the test of a continued run this is a list.
        pytest.param(lambda: READINGS, marks=pytest.mark.chaos),
        lambda: pd.DataFrame([vars(one) for one in READINGS]),
        pytest.param(lambda: pa.Table.from_pylist([vars(one) for one in READINGS]), marks=pytest.mark.chaos),
        lambda: iter(READINGS),
    ],
    ids=["list", "pandas", "arrow", "iterator"],
)
def test_a_bounded_run_gives_what_left_through_its_sinks(spark: SparkSession, readings: Any) -> None:
    """They are returned as records, and as a table."""
    result = job.run({"readings": readings(), "limits": LIMITS}, parallelism=2)
    assert in_order(result.output("alarms")) == ALARMS
    assert sorted(result.output_table("alarms").to_pandas().temperature) == [26.0, 31.0]
    assert result.summary.status == "finished"
    assert result.summary.records_in == {"readings": 4, "limits": 2}
    assert result.dead_letters() == []


def test_a_run_is_fed_steered_looked_at_and_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """The run that `start` returns does all of it."""
    with job.start({"readings": READINGS[:1]}, checkpoint=tmp_path / "state", parallelism=2) as run:
        run.send("limits", Limit(1, 25.0))
        run.await_batch()
        assert run.send("readings", *READINGS[1:3]) == 2
        run.await_batch()
        assert run.output("alarms") == ALARMS[:1]
        sent = run.send_command("set", "watch/2", {"limit": 30.0})
        assert run.await_receipt(sent).status == "APPLIED"
        assert [receipt.status for receipt in run.receipts(sent)] == ["ACCEPTED", "VALIDATED", "APPLIED"]
        assert run.receipts() == run.receipts(sent)
        assert run.state("watch") == {1: {"limit": 25.0}, 2: {"limit": 30.0}}
        assert run.state("watch", 2) == {"limit": 30.0}
        assert run.state("watch", 3) == {}
        run.send("readings", {"room": 2, "temperature": 31.0}, Reading(None, 1.0))  # type: ignore[arg-type]
        run.await_batch()
        assert in_order(run.output("alarms")) == ALARMS
        assert [letter.stream for letter in run.dead_letters()] == ["readings"]
        with pytest.raises(
            BindingError, match="'attic' takes no records from Python; these streams do: readings"
        ):
            run.send("attic", {})
        with pytest.raises(CommandRefusedError, match="names no step"):
            run.send_command("set", "attic")
        run.send("readings", Reading(2, 40.0))
        result = run.stop(drain=True)
    assert result.summary.status == "stopped"
    assert Alarm(2, 40.0) in result.output("alarms")
    assert not (tmp_path / "state" / "inputs" / "readings" / f"{0:020}.parquet").exists(), (
        "it is read and removed"
    )


def test_a_run_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Records are not read twice, and a different list is refused."""
    bindings = {"readings": READINGS, "limits": LIMITS}
    for _ in range(2):
        result = job.run(bindings, checkpoint=tmp_path / "state", parallelism=2)
        assert in_order(result.output("alarms")) == ALARMS
    with pytest.raises(CheckpointError, match="began with other records for the stream 'readings'"):
        job.run({**bindings, "readings": READINGS[:1]}, checkpoint=tmp_path / "state")
    with job.start({"readings": READINGS}, checkpoint=tmp_path / "state") as run:
        run.send("readings", Reading(1, 40.0))
        run.await_batch()
        assert in_order(run.output("alarms")) == [ALARMS[0], Alarm(1, 40.0), ALARMS[1]]
        run.send("readings", Reading(1, 41.0))
        assert run.stop(drain=True).summary.status == "stopped"
    assert len(run.output("alarms")) == 4


def test_what_an_earlier_run_left_in_the_jvm_takes_no_lock_away(spark: SparkSession, tmp_path: Path) -> None:
    """Garbage collection closes no file of the first run, which would release the lock of the second."""
    jvm: Any = spark._jvm
    held = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)"
    for _ in range(2):
        unlock = lock_for_jvm(tmp_path, jvm, threading.Event(), 0)
        for _ in range(3):
            gc.collect()
            jvm.java.lang.System.gc()
        other = [sys.executable, "-c", held, str(tmp_path / LOCK_FILE)]
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in refused.stderr
        unlock()


def test_an_iterator_feeds_a_run(spark: SparkSession) -> None:
    """Its records are processed while it yields more."""
    goes_on = threading.Event()

    def readings() -> Iterator[Reading]:
        yield READINGS[1]
        goes_on.wait()
        yield READINGS[3]

    with job.start({"readings": readings(), "limits": LIMITS}, parallelism=2) as run:
        while run.output("alarms") != ALARMS[:1]:
            run.await_batch()
        goes_on.set()
        while len(run.output("alarms")) < 2:
            run.await_batch()
        assert in_order(run.output("alarms")) == ALARMS


def test_a_run_that_fails_raises_why(spark: SparkSession) -> None:
    """The error is raised where the caller waits, and where it leaves the block."""
    with pytest.raises(PenstockError, match="could not be processed at step 'watch'"):
        job.run({"readings": [Reading(1, -300.0)]}, strict=True)
    run = job.start(strict=True)
    run.send("readings", Reading(1, -300.0))
    with pytest.raises(PenstockError, match="could not be processed at step 'watch'"):
        run.await_batch()
    with pytest.raises(PenstockError, match="could not be processed at step 'watch'"):
        run.stop()


def test_uris_go_as_before(spark: SparkSession, tmp_path: Path) -> None:
    """Only sinks without a URI are collected."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(json.dumps({"room": 1, "temperature": 26.0}) + "\n")
    bindings = {"readings": f"jsonl:{tmp_path}/in", "limits": LIMITS, "alarms": f"jsonl:{tmp_path}/out"}
    result = job.run(bindings, parallelism=2)
    (out,) = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(out.read_text()) == {"room": 1, "temperature": 26.0}
    with pytest.raises(BindingError, match="'alarms' is not a collected sink; the collected sinks are: none"):
        result.output("alarms")


@pytest.mark.parametrize(
    ("bindings", "more", "error", "message"),
    [
        (
            {},
            {},
            BindingError,
            "The data stream 'readings' has no binding, and a bounded run would end at once",
        ),
        ({"readings": 7}, {}, BindingError, "The stream 'readings' is bound to 'int'"),
        ({"readings": [], "attic": []}, {}, BindingError, "'attic' is not a stream of the job 'watch'"),
        ({"readings": [], "attic": "discard:"}, {}, BindingError, "has no stream 'attic'"),
        (
            {"readings": []},
            {"paralelism": 2},
            JobDefinitionError,
            "Unknown setting 'paralelism'. The settings of a run",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    spark: SparkSession, bindings: Any, more: Any, error: type[Exception], message: str
) -> None:
    """The refusal comes before anything starts."""
    with pytest.raises(error, match=message):
        job.run(bindings, **more)


PROGRAM = """
from dataclasses import dataclass
import penstock as ps
import neighbour

@dataclass
class Reading:
    room: int
    temperature: float

@dataclass
class Warm:
    room: int
    degrees: float

job = ps.Job("warm")
warm = job.data_stream("readings", schema=Reading).filter(lambda r: r.temperature > neighbour.LIMIT)
warm.map(lambda r: Warm(r.room, r.temperature), output=Warm).sink_to("warm")

if __name__ == "__main__":
    for _ in range(RUNS):
        result = job.run({"readings": [Reading(1, 20.0), Reading(2, 30.0)]})
        print(result.output("warm"))
"""


@pytest.mark.chaos  # tests/system/test_readme.py runs a program once
@pytest.mark.parametrize("runs", [1, 2])
def test_a_program_runs_its_own_job(tmp_path: Path, runs: int) -> None:
    """Each run starts its own Spark; its classes and the modules beside it reach the workers."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("RUNS", str(runs)))
    (tmp_path / "neighbour.py").write_text("LIMIT = 25.0\n")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines() == ["[Warm(room=2, degrees=30.0)]"] * runs, done.stderr


def test_what_a_program_cannot_send_is_refused(tmp_path: Path) -> None:
    """A Struct defined in the program itself is refused before Spark starts."""
    struct = PROGRAM.replace("RUNS", "1").replace(
        "@dataclass\nclass Warm:", "class Warm(__import__('msgspec').Struct):"
    )
    (tmp_path / "program.py").write_text(struct)
    (tmp_path / "neighbour.py").write_text("LIMIT = 25.0\n")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert "Warm is a msgspec Struct of the program that is run" in done.stderr
    assert "Make it a dataclass, or move it into a module" in done.stderr
