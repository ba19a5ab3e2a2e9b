"""The fork server: run Spark's Python processes on this machine as forks of one that has imported what they need.

To start a query, Spark starts a Python process for each question: which sources exist, what a source is, what its
offset is, how a step begins. It starts one more to fork workers from. Each would import PySpark and penstock again,
one after another. The driver starts this server next to the JVM instead, and the programs that the JVM starts
(`fork_client.py`) ask it for forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.machine.memory import family_of
from penstock.spark.startup.fork_client import ADDRESS

__all__ = ["CLIENT", "fork_server_address", "fork_server_processes", "start_fork_server"]

CLIENT: Final = Path(__file__).with_name("fork_client.py")

_FOR_PLANNING: Final = (
    "pyspark.daemon",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "penstock.spark.log_source",
)

_SOCKET: Final = "socket"
# Addresses of sockets have at most 103 bytes on macOS, and 107 on Linux.
_LONGEST_FOLDER: Final = 103 - len(f"/{_SOCKET}")

_servers: Final[list[subprocess.Popen[bytes]]] = []
"""The server of this process. It ends when its standard input is closed, with this process at the latest."""


@functools.cache
def fork_server_address() -> str:
    """Return where the server of this process listens once it is started."""
    folder = tempfile.mkdtemp(prefix="penstock-fork-")
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="penstock-fork-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(Path(folder, _SOCKET))


def start_fork_server() -> None:
    """Start the server, once for this process and its JVM."""
    if _servers:
        return
    address = Path(fork_server_address())
    # Clients that connect before the server has imported everything wait for it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", __name__, str(listener.fileno()), str(address.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            # Ctrl-C is for the driver.
            process_group=0,
            # Spark sets this for all of its Python processes.
            env={"PYTHONHASHSEED": "0", **os.environ},
        )
    _servers.append(server)
    os.environ[ADDRESS] = str(address)


def fork_server_processes() -> list[int]:
    """Return the process ids of this process's server, if it has one, and of all its forks."""
    return [pid for server in _servers for pid in (server.pid, *family_of(server.pid))]


@dataclass(frozen=True)
class _Request:
    """The arguments, environment and files that a process was started with."""

    folder: bytes
    arguments: Sequence[bytes]
    environment: Sequence[bytes]
    files: Sequence[int]


def _receive(client: socket.socket) -> _Request:
    """Read a request. Raises OSError or ValueError when the client disconnects before its end."""
    header, files, _, _ = socket.recv_fds(client, 4, 3)
    (size,) = struct.unpack("!I", header) if len(header) == 4 else (0,)
    body = bytearray()
    while len(body) < size:
        more = client.recv(size - len(body))
        if not more:
            break
        body += more
    if not size or len(body) < size or len(files) != 3:
        for file in files:
            os.close(file)
        raise ValueError("the request is incomplete")
    folder, count, *rest = bytes(body).split(b"\0")
    return _Request(folder, rest[: int(count)], rest[int(count) :], files)


class _Server:
    """A server that forks on request, sends each client its process's exit code, and ends processes of lost clients."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)

    def serve(self) -> _Request | None:
        """Serve until standard input is closed, then return None. In a forked process, return the request to run."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for file in (0, self._woken, self._listener.fileno()):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return None
                if key.fd == self._woken:
                    os.read(self._woken, 4096)
                    self._send_exit_codes()
                elif key.fd == self._listener.fileno():
                    request = self._fork()
                    if request is not None:
                        return request
                else:
                    self._end_process(key.data)

    def _fork(self) -> _Request | None:
        """Start a process for a client. Return the request in that process, and None in this one."""
        client, _ = self._listener.accept()
        try:
            request = _receive(client)
        except (OSError, ValueError):
            client.close()
            return None
        pid = os.fork()
        if pid == 0:
            client.close()
            self._close()
            return request
        for file in request.files:
            os.close(file)
        self._clients[pid] = client
        # Registered by process: a descriptor may belong to another client by the time its event is handled.
        self._selector.register(client, selectors.EVENT_READ, pid)
        return None

    def _close(self) -> None:
        """Close the server's files and signal handlers, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._listener.close()
        for client in self._clients.values():
            client.close()
        os.close(self._woken)
        os.close(self._wakes)

    def _send_exit_codes(self) -> None:
        """Send the exit codes of processes that have ended to their clients."""
        for pid in list(self._clients):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            client = self._clients.pop(pid)
            with contextlib.suppress(KeyError):
                # The client was unregistered when it disconnected before.
                self._selector.unregister(client)
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                client.sendall(struct.pack("!I", code if code >= 0 else 128 - code))
            client.close()

    def _end_process(self, pid: int) -> None:
        """End a process whose client has ended."""
        # Both may have ended at once, and the id of a process that was waited for may belong to another one.
        if pid in self._clients:
            self._selector.unregister(self._clients[pid])
            os.kill(pid, signal.SIGTERM)


def _run(request: _Request) -> None:
    """Become the process that the client was started as."""
    for target, file in enumerate(request.files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request.folder)
    os.environb.clear()
    for entry in request.environment:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Workers share one file. `print` would write a line and its end apart, and others in between.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    paths = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    module, *arguments = map(os.fsdecode, request.arguments)
    sys.argv[1:] = arguments
    with contextlib.suppress(OSError):
        # Set Linux's process name. The command line remains that of the server.
        Path("/proc/self/comm").write_text([module, *arguments][-1].rpartition(".")[2])
    # runpy warns that the module is imported already, which is intended.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import, then serve until the driver ends."""
    # The driver needs no PySpark to start the server.
    from penstock.spark.startup.worker_daemon import import_for_tasks

    listener, folder = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    for name in _FOR_PLANNING:
        importlib.import_module(name)
    import_for_tasks()
    # These objects stay, so no process needs to scan them, which would copy their memory pages.
    gc.collect()
    gc.freeze()
    request = _Server(listener).serve()
    if request is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _run(request)


if __name__ == "__main__":
    main()
