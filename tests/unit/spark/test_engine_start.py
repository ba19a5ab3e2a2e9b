"""An engine that does not start: its task has the reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
from penstock.realtime.interval_task import SlotFailedError
from penstock.realtime.messages import Launch
from penstock.spark.engine_process import engines_live_apart, start_engine_apart
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.startup.fork_server import start_fork_server


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


start_fork_server()
assert engines_live_apart()
try:
    start_engine_apart(Sealed(Unreadable()), 0, None, Launch(1, 0), 0, 0)
except SlotFailedError as e:
    print(e)
"""


@pytest.mark.timeout(60)
def test_a_task_has_the_error_of_an_engine_that_does_not_start() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert "ValueError: invalid literal for int() with base 10: 'no number'" in done.stdout
    assert "engine_process.py" in done.stdout
