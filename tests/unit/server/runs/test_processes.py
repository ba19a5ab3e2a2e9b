"""Processes of runs: at most one each, known by a lock, and signalled only when they are still the same."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from threads_at_once import call_at_once

from penstock.base.durable import write_atomically
from penstock.server.lifecycle.decisions import DriverState, EndKind
from penstock.server.runs.processes import (
    BEGUN_FILE,
    ENDED_FILE,
    DriverStarted,
    Ended,
    Processes,
    cancel_launch,
    fail_unstarted,
    is_alive,
    kill_all,
    observe,
    process_of,
    refuse,
    started_process,
    terminate,
)

SLEEPS = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
# Starts a child in the same session, which does not inherit the lock, and sleeps.
PARENT = (
    sys.executable,
    "-S",
    "-c",
    "import subprocess, time; subprocess.Popen(['sleep', '601']); time.sleep(600)",
)


# Lets go of its lock, as the kernel does when a process ends, and exits once a file is there.
SLOW_END = """
import os, time
os.close(int(os.environ["PENSTOCK_ALIVE_FILE"]))
while not os.path.exists({may_exit!r}):
    time.sleep(0.01)
os._exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "1"


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for started in made._started.values():
        started.kill()
        started.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begun(processes: Processes, folder: Path) -> DriverStarted:
    """The process of a run, which makes itself known."""
    found = process_of(processes._started[folder].pid)
    assert found is not None
    write_atomically(folder / BEGUN_FILE, msgspec.json.encode(found))
    assert started_process(folder) == found
    return found


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664)])
def test_a_process_has_the_umask_that_it_is_given(tmp_path: Path, umask: int, mode: int) -> None:
    """What a job writes for others stays for others, though the server's own files are private."""
    processes = Processes(umask)
    before = os.umask(0o077)
    try:
        written = tmp_path / "written"
        processes.launch(tmp_path / "run", [sys.executable, "-c", f"open({str(written)!r}, 'w')"], b"")
        processes.await_exit(tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE(written.stat().st_mode) == mode


def test_a_run_is_alive_exactly_while_its_process_is(processes: Processes, folder: Path) -> None:
    """Also when nobody awaits it, and it is a zombie."""
    assert processes.launch(folder, SLEEPS, b"{}")
    assert is_alive(folder)
    assert observe(folder).state is DriverState.ALIVE
    process = begun(processes, folder)
    terminate(process)
    until(lambda: not is_alive(folder))
    until(lambda: process_of(process.pid) is None)
    # Nobody has awaited it.
    assert Path(f"/proc/{process.pid}").exists()
    driver = observe(folder)
    assert driver.state is DriverState.ENDED
    assert driver.end is not None
    assert driver.end.kind is EndKind.KILLED
    assert processes.reap() == {folder: -signal.SIGTERM}
    assert processes.reap() == {}


def test_a_run_that_has_ended_gives_its_exit_code(processes: Processes, folder: Path, tmp_path: Path) -> None:
    """Though its lock is free a moment before it exits; those that others have started are not awaited."""
    may_exit = tmp_path / "may-exit"
    program = SLOW_END.format(may_exit=str(may_exit))
    processes.launch(folder, (sys.executable, "-S", "-c", program), b"{}")
    until(lambda: not is_alive(folder))
    assert processes.reap() == {}
    may_exit.touch()
    processes.await_exit(folder)
    assert processes.reap() == {folder: 7}
    processes.await_exit(folder)


def test_a_run_is_launched_once(processes: Processes, folder: Path) -> None:
    """By however many at once, and never again when its process has begun."""
    outcomes: list[bool] = []
    several = [Processes() for _ in range(5)]
    call_at_once([lambda p=p: outcomes.append(p.launch(folder, SLEEPS, b"{}")) for p in several])
    assert sorted(outcomes) == [False] * 4 + [True]
    starter = next(p for p in several if p._started)
    kill_all(begun(starter, folder))
    until(lambda: bool(starter.reap()))
    assert not processes.launch(folder, SLEEPS, b"{}")


def test_a_launch_that_did_not_get_far_is_made_again(processes: Processes, folder: Path) -> None:
    """The process died before it began, and so did who started it: it is as if nothing had been."""
    processes.launch(folder, SLEEPS, b"{}")
    processes._started[folder].kill()
    until(lambda: not is_alive(folder))
    assert observe(folder).state is DriverState.UNLAUNCHED
    assert Processes().launch(folder, ("true",), b"{}")


def test_who_started_a_process_that_never_began_ends_the_run(processes: Processes, folder: Path) -> None:
    """One that began is left as it is."""
    processes.launch(folder, ("false",), b"{}")
    until(lambda: processes.reap() == {folder: 1})
    fail_unstarted(folder, "it broke")
    end = observe(folder).end
    assert end is not None
    assert (end.kind, end.why) == (EndKind.FAILED, "it broke")
    fail_unstarted(folder, "again")
    assert observe(folder).end == end


@pytest.mark.parametrize("ending", [cancel_launch, lambda folder: refuse(folder, "it is gone")])
def test_a_run_that_is_ended_before_it_began_stays_so(
    processes: Processes, folder: Path, ending: Callable[[Path], None]
) -> None:
    """A launch that comes late starts nothing."""
    ending(folder)
    assert observe(folder).state is DriverState.ENDED
    assert not processes.launch(folder, SLEEPS, b"{}")
    assert not is_alive(folder)


def test_a_run_that_lives_is_not_voided(processes: Processes, folder: Path) -> None:
    """It is what it is, before and after it is known by its file."""
    processes.launch(folder, SLEEPS, b"{}")
    cancel_launch(folder)
    assert observe(folder).state is DriverState.ALIVE
    kill_all(begun(processes, folder))
    until(lambda: not is_alive(folder))
    cancel_launch(folder)
    end = observe(folder).end
    assert end is not None
    assert end.kind is EndKind.KILLED


@pytest.mark.parametrize("kind", ["finished", "stopped", "failed", "refused"])
def test_the_last_word_of_a_run_counts(folder: Path, kind: str) -> None:
    """Once its process has ended."""
    cancel_launch(folder)
    write_atomically(folder / ENDED_FILE, msgspec.json.encode(Ended(kind, "so it is")))  # type: ignore[arg-type]
    end = observe(folder).end
    assert end is not None
    assert (end.kind.name, end.why) == (kind.upper(), "so it is")


def test_all_of_a_session_is_killed(processes: Processes, folder: Path) -> None:
    """Also when its leader has died before."""
    processes.launch(folder, PARENT, b"{}")
    process = begun(processes, folder)

    def children() -> list[str]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "-s", str(process.pid)], capture_output=True, text=True, check=False
        )
        return [pid for pid in found.stdout.split() if process_of(int(pid)) is not None]

    until(lambda: len(children()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(folder))
    until(lambda: len(children()) == 1)
    kill_all(process)
    until(lambda: not children())


def test_another_process_with_the_same_id_is_left_alone(processes: Processes, folder: Path) -> None:
    """It started at another time, or since another boot."""
    processes.launch(folder, SLEEPS, b"{}")
    process = begun(processes, folder)
    for other in (
        msgspec.structs.replace(process, started_ticks=process.started_ticks - 1),
        msgspec.structs.replace(process, boot="another"),
    ):
        terminate(other)
        if other.boot == process.boot:
            kill_all(other)
    time.sleep(0.2)
    assert is_alive(folder)
    terminate(msgspec.structs.replace(process, pid=2**22 - 3))


def test_a_process_gets_none_of_the_managers_own_secrets(
    processes: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor its input; and it is in a session of its own."""
    monkeypatch.setenv("PENSTOCK_SERVER_TOKEN", "canary")
    monkeypatch.setenv("OF_THE_JOB", "kept")
    show = "import os, sys; print(dict(os.environ), sys.stdin.read() == '', os.getsid(0) == os.getpid())"
    processes.launch(folder, (sys.executable, "-c", show), b"{}")
    until(lambda: processes.reap() == {folder: 0})
    printed = (folder / "output.log").read_text()
    assert "canary" not in printed
    assert "'OF_THE_JOB': 'kept'" in printed
    assert printed.strip().endswith("True True")
