"""The fork server: what Spark starts is a fork, and for Spark it is the process that it has started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from penstock.spark.startup.fork_client import ADDRESS
from penstock.spark.startup.fork_server import CLIENT, _Server, fork_server_address

_DRIVER = """
import os, sys
from penstock.spark.startup.fork_client import ADDRESS
from penstock.spark.startup.fork_server import fork_server_processes, start_fork_server
start_fork_server()
start_fork_server()
print(os.environ[ADDRESS], *fork_server_processes(), flush=True)
sys.stdin.read()
"""

_MODULE = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "own": os.environ.get("OWN"), "inherited": os.environ.get("INHERITED"),
    "parent": os.getppid(), "is_main": __name__ == "__main__", "in": sys.stdin.read(),
    "has": "penstock.spark.log_source" in sys.modules and "pandas" in sys.modules,
}))
print("a note", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""

_SLEEPER = """
import os, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


class Server:
    """A driver that has started a server."""

    def __init__(self, folder: Path) -> None:
        self.driver = subprocess.Popen(
            [sys.executable, "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "INHERITED": "of the driver"},
        )
        assert self.driver.stdout is not None
        address, *pids = self.driver.stdout.readline().decode().split()
        self.address, (self.pid,) = Path(address), map(int, pids)
        (folder / "answering.py").write_text(_MODULE)
        (folder / "sleeping.py").write_text(_SLEEPER)
        self._folder = folder

    def start(self, *arguments: str, own: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start what Spark would start."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", CLIENT, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder,
            env={ADDRESS: str(self.address), "PYTHONPATH": str(self._folder), **(own or {})},
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests, as a driver has one for all processes."""
    started = Server(tmp_path_factory.mktemp("modules"))
    yield started
    started.driver.kill()
    started.driver.communicate()


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("code", [0, 3])
def test_a_fork_is_what_was_started(server: Server, code: int, tmp_path: Path) -> None:
    """It has the arguments, folder, environment and files of the program that was started, and gives its exit code."""
    process = server.start("answering", str(code), "two words", own={"OWN": "1=2"})
    out, err = process.communicate(b"given", timeout=60)
    told = json.loads(out)
    assert told.pop("cwd") == str(server._folder)
    assert told == {
        "argv": [str(code), "two words"],
        "own": "1=2",
        "inherited": None,
        "parent": server.pid,
        "is_main": True,
        "in": "given",
        "has": True,
    }
    assert (err, process.returncode) == (b"a note\n", code)


def test_a_fork_ends_with_the_program_that_was_started(server: Server) -> None:
    """Spark ends what it has started, however it does so."""
    process = server.start("sleeping")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert pid != process.pid
    assert Path(f"/proc/{pid}/comm").read_text() == "sleeping\n"
    process.kill()
    process.communicate()
    _await(lambda: not _lives(pid))


def test_the_program_ends_with_its_fork(server: Server) -> None:
    """With the code that shells have for signals."""
    process = server.start("sleeping")
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL


def test_programs_and_forks_that_end_at_once_cost_nothing_else(server: Server) -> None:
    """A query that ends takes several of both with it."""
    processes = [server.start("sleeping") for _ in range(6)]
    pids = [int(process.stdout.readline()) for process in processes if process.stdout is not None]
    os.kill(server.pid, signal.SIGSTOP)
    for process, pid in zip(processes, pids, strict=True):
        os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
    os.kill(server.pid, signal.SIGCONT)
    for process in processes:
        # The server may have stopped before it closed its copy of their files.
        process.communicate(timeout=60)
    _await(lambda: not any(map(_lives, pids)))
    process = server.start("answering", "0")
    process.communicate(b"", timeout=60)
    assert process.returncode == 0


def test_a_process_that_was_awaited_is_not_ended() -> None:
    """Its id may be that of any other process by now."""
    other = subprocess.Popen(["sleep", "600"])
    with socket.socket(socket.AF_UNIX) as listener:
        _Server(listener)._end_process(other.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.1)
    other.kill()
    other.wait()


def test_a_broken_request_costs_nothing_else(server: Server) -> None:
    """What connects and goes away is no reason to end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.address))
    process = server.start("answering", "0")
    process.communicate(b"", timeout=60)
    assert process.returncode == 0


def test_the_server_ends_with_its_driver(tmp_path: Path) -> None:
    """And leaves nothing behind; programs that are started later do without."""
    server = Server(tmp_path)
    server.driver.kill()
    server.driver.communicate()
    _await(lambda: not _lives(server.pid))
    assert not server.address.parent.exists()
    out, _ = server.start("answering", "0").communicate(b"", timeout=60)
    told = json.loads(out)
    assert (told["argv"], told["parent"], told["has"]) == (["0"], os.getpid(), False)


def test_a_long_folder_for_temporary_files_leaves_the_address_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems take no address of a socket that has more than some hundred bytes."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(fork_server_address.__wrapped__())
    assert not list(folder.iterdir())
