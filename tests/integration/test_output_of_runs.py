"""The output of runs: what functions print is in the log of the run, and Spark's log has a bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_prints_are_in_the_log_and_spark_s_log_has_a_bound(tmp_path: Path) -> None:
    """In a process of its own, since the shared session has its log elsewhere and room enough."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.jsonl").write_text('{"text":"hello"}\n')
    script = Path(__file__).with_name("printing_job.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["message"] for line in told if line["logger"] == "penstock.jobs.output"}
    assert {"printed hello", "logged hello"} <= found
    checkpoint = tmp_path / "checkpoint"
    assert "printed hello" in (checkpoint / "output.log").read_text()
    logs = {path.name: path for path in checkpoint.glob("spark.log*")}
    assert set(logs) == {"spark.log", "spark.log.1"}
    assert all(path.stat().st_size < 4096 + 200 for path in logs.values())
    assert "warning 299 of many" in logs["spark.log"].read_text()
