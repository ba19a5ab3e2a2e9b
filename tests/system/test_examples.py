"""An example as readers start it: a server, a job and the program that watches it, each as a process.

tests/integration/test_stories.py tests its output, and the other examples.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.machine.local_server import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.chaos
def test_an_example_runs_as_its_readers_start_it(tmp_path: Path) -> None:
    """One command suffices, from any folder."""
    options = ["--port", str(free_port()), "--sales", "300", "--per-second", "200", "--to", str(tmp_path)]
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "profit_per_month" / "run.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "and 3 lines of the server were not sales" in finished.stdout
