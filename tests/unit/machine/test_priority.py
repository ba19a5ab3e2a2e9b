"""Priorities: all threads of a process are lowered, and its later children."""

from __future__ import annotations

import os
import signal
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
    """Covered are an existing thread, and one that the process starts afterwards."""
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


_YIELDING = """
import os, sys, time
from penstock.machine.priority import continue_yielding
outer = os.getpid()
continue_yielding()
print(os.getppid() == outer, os.getsid(0) == os.getpid(), os.nice(0), flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(60)
sys.exit(7)
"""


def test_a_process_that_goes_on_with_a_low_priority_has_its_own_session_and_its_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _YIELDING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True True 5\n", "", 7)


def test_signals_reach_a_process_that_goes_on_with_a_low_priority() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _YIELDING, "wait"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True True 5\n"
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel has no priority of sessions"
)
@pytest.mark.parametrize(("yielding", "niceness"), [("yield_process", 19), ("yield_to_jobs", 5)])
def test_the_session_of_a_process_that_yields_has_its_priority(yielding: str, niceness: int) -> None:
    program = (
        "import os\n"
        "from pathlib import Path\n"
        f"from penstock.machine.priority import {yielding}\n"
        f"{yielding}()\n"
        "print(Path('/proc/self/autogroup').read_text().split()[-2:], os.nice(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.stdout == f"['nice', '{niceness}'] {niceness}\n"
