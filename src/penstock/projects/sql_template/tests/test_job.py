"""Test of the whole job on Spark with the sample: the output is the one in README.md."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


def test_the_sample_produces_the_alerts_in_the_readme(tmp_path):
    """Run the command in README.md with another output folder."""
    command = re.search(r"^penstock (sql .*--bounded .*)$", README, re.MULTILINE).group(1)
    arguments = [part.replace("out/alerts", str(tmp_path)) for part in shlex.split(command)]
    subprocess.run([sys.executable, "-m", "penstock.cli", *arguments], cwd=PROJECT, check=True)

    alerts = [json.loads(line) for path in sorted(tmp_path.glob("*.jsonl")) for line in path.open()]
    assert [(one["sensor"], one["mean"], one["records"]) for one in alerts] == [
        ("boiler", 83.25, 2),
        ("cellar", 99.0, 1),
    ]
    assert alerts == [json.loads(line) for line in README.splitlines() if line.startswith("{")]
