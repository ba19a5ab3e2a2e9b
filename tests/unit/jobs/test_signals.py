"""Signals: the first stops a run, a repetition of it does nothing, and a later one ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from penstock.jobs import signals
from penstock.jobs.signals import handle_signals


def test_a_signal_that_comes_twice_at_once_stops_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` sends a signal twice: to the process and to its group."""
    # A second one that is late would end this process.
    monkeypatch.setattr(signals, "_SAME_S", 60.0)
    stop = threading.Event()
    with handle_signals(stop):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()


def test_a_second_signal_ends_the_process() -> None:
    """The exit code is that of a signal."""
    program = (
        "import os, signal, threading, time\n"
        "from penstock.jobs.signals import handle_signals\n"
        "with handle_signals(threading.Event()):\n"
        "    for pause in (0.3, 5):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(pause)\n"
    )
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert time.monotonic() < began_s + 5
