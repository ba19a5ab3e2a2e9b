"""A JVM that is started ahead is taken only by a session that would start the same one; otherwise it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.startup import jvm_ahead as ahead
from penstock.spark.startup.jvm_start import JvmStart, jvm_environment, jvm_settings

START = JvmStart("local[2]", more={"spark.ui.port": "4050"})
# Tells where it is, as Spark's script does, and then lives until its standard input ends.
SCRIPT = """#!/bin/sh
echo $$ > "$PLACE/pid"
echo "$@" > "$PLACE/arguments"
{then}
"""


@pytest.fixture(autouse=True)
def _spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setattr(ahead, "pyspark_folder", lambda: tmp_path)
    write_script(tmp_path, "exec cat > /dev/null")
    yield
    ahead.discard_jvm_ahead()


def write_script(folder: Path, then: str) -> None:
    """Let Spark's script do something."""
    script = folder / "bin" / "spark-submit"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT.format(then=then))
    script.chmod(0o755)


def pid_of(folder: Path) -> int:
    """Return the process that Spark's script has become, once it runs."""
    deadline = time.monotonic() + 20
    arguments = folder / "arguments"
    while not (arguments.exists() and arguments.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "the script did not start"
        time.sleep(0.01)
    return int((folder / "pid").read_text())


def is_alive(pid: int) -> bool:
    """Return whether a process is there."""
    return Path(f"/proc/{pid}").exists()


def test_the_session_takes_a_jvm_that_fits(tmp_path: Path) -> None:
    """Once; it has the user's settings, and continues when the context is left."""
    with ahead.jvm_ahead(START):
        taken = ahead.take_jvm_ahead(JvmStart("local[2]", more={"spark.ui.port": "4050"}))
        assert taken is not None
        assert ahead.take_jvm_ahead(START) is None
        pid = pid_of(tmp_path)
    assert is_alive(pid)
    arguments = (tmp_path / "arguments").read_text()
    assert "--conf=spark.master=local[2]" in arguments
    assert "--conf=spark.ui.port=4050" in arguments
    taken.end()
    assert not is_alive(pid)


@pytest.mark.parametrize("changed", ["settings", "environment", "folder"])
def test_a_jvm_that_does_not_fit_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """A job file may change what a JVM starts with, and the session then starts its own."""
    wanted = START
    with ahead.jvm_ahead(START):
        pid = pid_of(tmp_path)
        if changed == "settings":
            wanted = JvmStart("local[2]", heap_mb=700)
        elif changed == "environment":
            monkeypatch.setenv("SPARK_CONF_DIR", "/elsewhere")
        else:
            monkeypatch.chdir(tmp_path)
        assert ahead.take_jvm_ahead(wanted) is None
        assert not is_alive(pid)


def test_a_signal_to_the_processes_of_a_job_does_not_reach_its_jvm(tmp_path: Path) -> None:
    """It is for the driver, which stops the job between two micro-batches and then ends the JVM."""
    with ahead.jvm_ahead(START):
        pid = pid_of(tmp_path)
        assert os.getpgid(pid) == pid != os.getpgid(0)
        assert os.getsid(pid) == os.getsid(0)


def test_a_jvm_that_nobody_takes_ends_with_the_context(tmp_path: Path) -> None:
    """For example when the job file has a mistake."""
    with ahead.jvm_ahead(START):
        pid = pid_of(tmp_path)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("master", "variable"),
    [("spark://one:7077", None), ("local[2]", "SPARK_HOME"), ("local[2]", "SPARK_REMOTE")],
)
def test_clusters_and_other_sparks_start_no_jvm_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, variable: str | None
) -> None:
    """Their JVM is not started by PySpark's own script with these settings."""
    if variable is not None:
        monkeypatch.setenv(variable, "/other")
    with ahead.jvm_ahead(JvmStart(master)):
        assert ahead.take_jvm_ahead(JvmStart(master)) is None
    assert not (tmp_path / "pid").exists()


def test_a_jvm_that_ends_at_once_is_no_gateway(tmp_path: Path) -> None:
    """The session then starts one as usual, and reports what is wrong with it."""
    write_script(tmp_path, "exit 1")
    with ahead.jvm_ahead(START):
        taken = ahead.take_jvm_ahead(START)
        assert taken is not None
        assert taken.connect() is None


def test_the_log_is_named_only_by_a_session() -> None:
    """Before the checkpoint is locked, the JVM must not open the log of another run."""
    ahead_of = jvm_settings(START)["spark.driver.extraJavaOptions"]
    of_session = jvm_settings(START, {"penstock.log": "/checkpoint/spark.log"})[
        "spark.driver.extraJavaOptions"
    ]
    assert "penstock.log" not in ahead_of
    assert "-Dpenstock.log=/checkpoint/spark.log" in of_session


def test_variables_of_the_user_come_before_those_of_penstock(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for Java, which was examined, and for the server of workers."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    found = jvm_environment(JvmStart("local[2]", is_lean=True))
    assert found["MALLOC_ARENA_MAX"] == "7"
    assert found["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert found.keys() > os.environ.keys()
