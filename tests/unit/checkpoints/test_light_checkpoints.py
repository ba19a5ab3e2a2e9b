"""What processes load that open a checkpoint and compute nothing."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import penstock.checkpoints.checkpoint
import penstock.server.runs.driver
print({"numpy", "pyarrow", "penstock.streams.graph"} & sys.modules.keys() or "nothing")
"""


def test_a_checkpoint_takes_no_arrow() -> None:
    """Arrow, with NumPy, and the graph of a job take two thirds of the start of such a process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "nothing\n"
