"""`penstock doctor` as users run it, on a machine that works and on one that does not."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from job_process import EXAMPLE
from typer.testing import CliRunner

from penstock.cli import app

STREAMS = ("readings", "settings")


def by_name(told: str) -> dict[str, Any]:
    """Return the checks by name."""
    return {check["check"]: check for check in json.loads(told)["checks"]}


def test_a_machine_that_runs_jobs_is_in_order(tmp_path: Path) -> None:
    """Covered are a job, its bindings, and a checkpoint that does not exist yet; checking creates nothing."""
    for stream in STREAMS:
        (tmp_path / stream).mkdir()
    bindings = [f"-D{name}=jsonl:{tmp_path / name}" for name in (*STREAMS, "heaters")]
    command = [sys.executable, "-m", "penstock.cli", "doctor", str(EXAMPLE), *bindings, "-o", "json"]
    command += ["--checkpoint", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    checks = by_name(done.stdout)
    assert {check["status"] for check in checks.values()} <= {"ok", "warning"}
    assert {"java", "jars", "checkpoint", "job", "-D readings", "-D settings", "-D heaters"} <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(STREAMS)


def test_what_is_wrong_fails_with_its_remedy(tmp_path: Path) -> None:
    """All at once: no Java, no jars, a taken port, a broken checkpoint, an unreachable broker."""
    (tmp_path / "readings").mkdir()
    state = tmp_path / "state"
    state.mkdir()
    (state / "lineage.json").write_text("{")
    # The path has everything except Java.
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [
            str(EXAMPLE),
            f"-Dreadings=jsonl:{tmp_path / 'readings'}",
            "-Dsettings=kafka://127.0.0.1:1/settings",
            "-Dheaters=console:",
            f"--checkpoint={state}",
            f"--port={port}",
        ]
        environment = {
            "PATH": str(tools),
            "JAVA_HOME": str(tmp_path),
            "PENSTOCK_CACHE": str(tmp_path / "cache"),
            "PENSTOCK_JARS": str(tmp_path / "no-jars"),
        }
        # A process of its own would load all of penstock's packages again.
        result = CliRunner(env=environment).invoke(app, ["doctor", *arguments, "-o", "json"])
    assert result.exit_code == 1, result.output
    checks = by_name(result.stdout)
    failed = {name for name, check in checks.items() if check["status"] == "failed"}
    expected = {"jars", f"port {port}", "checkpoint", "-D settings"}
    # A Java from PyPI would be found without any path.
    expected |= {"java"} if checks["java"]["status"] == "failed" else set()
    assert failed == expected
    assert "PENSTOCK_JARS" in checks["jars"]["remedy"]
    assert "Restore the file" in checks["checkpoint"]["remedy"]
    assert checks["-D settings"]["remedy"].startswith("Start the broker")
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_wrong_use_is_told_apart() -> None:
    """Bindings without a job are wrong use."""
    result = CliRunner().invoke(app, ["doctor", "-D", "readings=jsonl:/tmp"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: -D binds the streams of a job.")
