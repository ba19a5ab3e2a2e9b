"""The plugin for pytest: what stands in the report of a test that fails, and what a session loads for it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLUGIN = "pytest_penstock"
TESTS = """
import penstock as ps

job = ps.Job("doors")
job.data_stream("visits", schema="door STRING").sink_to("seen")

def test_that_fails(job_harness):
    run = job_harness(job)
    run.send("visits", {"door": "north"})
    assert run.run_batch().output("seen") == []
"""


def test_a_test_that_fails_shows_the_last_micro_batch(tmp_path: Path) -> None:
    """Of each harness that the fixture has made."""
    (tmp_path / "test_doors.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "- job doors -" in done.stdout
    assert (
        "Micro-batch 0\n  in, visits:\n    {'door': 'north'}\n  out, seen:\n    Record(door='north')"
        in done.stdout
    )


def test_a_session_without_jobs_does_not_import_penstock() -> None:
    """The plugin is declared, and costs next to nothing until a test asks for its fixture."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {PLUGIN: PLUGIN}
    script = f"import sys, {PLUGIN}; print([name for name in sys.modules if name.startswith('penstock')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
