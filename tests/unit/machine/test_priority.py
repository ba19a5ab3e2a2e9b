"""Priorities: all threads of a process yield, and what they start later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.machine.priority import yield_cores

PROGRAM = """
import os, sys, threading
ready = threading.Event()
threading.Thread(target=ready.wait, daemon=True).start()
print("started", flush=True)
sys.stdin.readline()
found = []
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
thread.start()
thread.join()
print(found[0], flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux has a priority for each thread")
def test_all_threads_of_a_process_yield_and_those_they_start() -> None:
    """A thread that is there, and one that the process starts afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        before = os.getpriority(os.PRIO_PROCESS, process.pid)
        yield_cores(process.pid)
        threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 2
        lowered = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        assert lowered == {max(before, 10)}
        process.stdin.write("\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == max(before, 10)
        process.stdin.write("\n")
