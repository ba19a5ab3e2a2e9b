"""The README's first job: pasted into an empty folder, it runs and prints the output shown there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAX_LINES = 15


def test_the_first_job_runs_as_it_is_shown(tmp_path: Path) -> None:
    """Only the two Python blocks are needed, and the job has at most 15 lines of code."""
    begin = README.read_text().partition("\n## Five minutes\n")[2].partition("\n## ")[0]
    blocks = _BLOCK.findall(begin)
    job, steering = (code for language, code in blocks if language == "python")
    assert sum(bool(line.strip()) for line in job.splitlines()) <= _MAX_LINES
    (shown,) = (text for language, text in blocks if not language and text.startswith("$ python alarms.py\n"))
    (tmp_path / "alarms.py").write_text(f"{job}\n\n{steering}")
    done = subprocess.run(
        [sys.executable, "alarms.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == shown.partition("\n")[2], done.stderr
