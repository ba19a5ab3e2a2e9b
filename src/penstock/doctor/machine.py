"""Machine checks: cores, memory, open files, addresses and ports, the clock."""

from __future__ import annotations

import contextlib
import math
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.doctor.findings import Finding, failed, fine, warning
from penstock.machine.limits import LOCAL_HEAP_MB, Cores, Memory, cores, memory
from penstock.state.kept_slots import DEFAULT_STATE_MEMORY_BYTES

__all__ = [
    "check_clock",
    "check_cores",
    "check_host_name",
    "check_loopback",
    "check_memory",
    "check_open_files",
    "check_port",
    "check_server_port",
]

_LOOPBACK: Final = "127.0.0.1"
_SERVER_PORT: Final = 8081
# Driver, block manager, the gateway to Python, and workers each listen at a port.
_PORTS: Final = 16
_ANSWER_S: Final = 5.0
# A Python worker with Arrow, pandas and PySpark loaded.
_WORKER_BYTES: Final = 300 << 20
_GIB: Final = 1 << 30
# RocksDB keeps the tables of each state partition open; and each of Spark's connections is a file.
_FEW_FILES: Final = 4096
_TOO_FEW_FILES: Final = 1024
_WATCHED_S: Final = 0.2
_JUMP_S: Final = 0.05
_BRACKET_S: Final = 0.005
_READINGS: Final = 100
_DAY_S: Final = 86_400


def check_cores(probe: Callable[[], Cores] = cores) -> Finding:
    """Check how many cores Spark takes, and whether it may use them."""
    found = probe()
    if found.quota is None or found.at_once == found.usable:
        return fine("cores", f"{found.usable}, and as many tasks at a time")
    whole = max(1, math.floor(found.quota))
    return warning(
        "cores",
        f"{found.usable}, of which the container may use {found.quota:g} at a time; as many tasks as cores would only "
        "wait for each other",
        f"Run jobs with --master 'local[{whole}]' --parallelism {whole}, or give the container whole cores.",
    )


def check_memory(probe: Callable[[], Memory] = memory, probe_cores: Callable[[], Cores] = cores) -> Finding:
    """Check the memory for Spark's JVM, a Python worker for each core, and their state."""
    found, workers = probe(), probe_cores().usable
    heap = LOCAL_HEAP_MB << 20
    least = heap + workers * _WORKER_BYTES
    most = least + workers * DEFAULT_STATE_MEMORY_BYTES
    shown = f"{_gib(found.available)} free of {_gib(found.total)}"
    if found.total < least:
        return failed(
            "memory",
            f"{shown}; Spark and {workers} workers need up to {_gib(least)} even without state",
            "Give the machine or the container more memory, or run jobs with --master 'local[1]'.",
        )
    if found.available < least:
        return warning(
            "memory",
            f"{shown}; Spark and {workers} workers need up to {_gib(least)} even without state",
            "Stop other programs, or run jobs with fewer cores: --master 'local[1]'.",
        )
    if found.available < most:
        spare_mb = (found.available - least) // workers >> 20
        return warning(
            "memory",
            f"{shown}; a job with as much state as {workers} workers keep in memory needs up to {_gib(most)}",
            f"Nothing to do for a job with little state; else --state-memory-mb {spare_mb}, or more memory.",
        )
    return fine("memory", f"{shown}; a job needs up to {_gib(most)}")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def check_open_files(
    probe: Callable[[], tuple[int, int]] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
) -> Finding:
    """Check how many files a process may have open; Java raises its own limit to the hard one."""
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in probe())
    shown = f"{soft:g} open files for a process, {hard:g} where it raises the limit".replace(
        "inf", "any number of"
    )
    remedy = (
        f"Raise the limit to {_FEW_FILES} or more: ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of "
        "Docker."
    )
    if hard < _TOO_FEW_FILES:
        return failed("open files", shown, remedy)
    if hard < _FEW_FILES:
        return warning("open files", shown, remedy)
    return fine("open files", shown)


def check_loopback(connect: Callable[[], None] | None = None) -> Finding:
    """Check that processes of this machine can connect at 127.0.0.1, at ports that the system chooses."""
    try:
        (connect or _talk)()
    except OSError as e:
        return failed(
            "loopback",
            f"no connection within {_LOOPBACK} ({e.strerror or e})",
            "Let programs listen at 127.0.0.1 and connect to it: check the firewall, the sandbox, the interface lo "
            "(ip link set lo up), and /proc/sys/net/ipv4/ip_local_port_range.",
        )
    return fine("loopback", f"{_PORTS} ports at {_LOOPBACK} were free, and answered")


def _talk() -> None:
    """Listen at as many ports as a job does, and connect to each. Raises OSError."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((_LOOPBACK, 0))) for _ in range(_PORTS)]
        for server in servers:
            server.settimeout(_ANSWER_S)
            client = stack.enter_context(socket.create_connection(server.getsockname(), _ANSWER_S))
            answering, _ = server.accept()
            with answering:
                answering.sendall(b"1")
                if client.recv(1) != b"1":
                    raise OSError("the bytes sent did not arrive")


def check_port(port: int, listen: Callable[[tuple[str, int]], Any] = socket.create_server) -> Finding:
    """Check that a port of 127.0.0.1 is free."""
    name = f"port {port}"
    try:
        listen((_LOOPBACK, port)).close()
    except OSError as e:
        return failed(
            name,
            f"{_LOOPBACK}:{port} is not available ({e.strerror or e})",
            f"Stop the program that listens there (ss -ltnp 'sport = :{port}' names it), or choose another port.",
        )
    return fine(name, f"{_LOOPBACK}:{port} is free")


def check_server_port(
    port: int = _SERVER_PORT, listen: Callable[[tuple[str, int]], Any] = socket.create_server
) -> Finding:
    """Check that the default port of `penstock serve` is free; jobs do not need it."""
    found = check_port(port, listen)
    if found.status == "ok":
        return fine("server port", found.found)
    return warning(
        "server port",
        found.found,
        f"Nothing to do if penstock serve listens there already (ss -ltnp 'sport = :{port}' names the program). "
        "Otherwise start it with --bind 127.0.0.1:PORT.",
    )


def check_host_name(
    name: Callable[[], str] = socket.gethostname,
    resolve: Callable[[str, None], Any] = socket.getaddrinfo,
) -> Finding:
    """Check that the machine knows its own name, which Spark looks up on clusters, and Hadoop everywhere."""
    host = name()
    try:
        addresses = sorted({str(found[4][0]) for found in resolve(host, None)})
    except OSError as e:
        return warning(
            "host name",
            f"{host} has no address ({e.strerror or e}); jobs on this machine run without one, clusters do not",
            f"Add the line '{_LOOPBACK} {host}' to /etc/hosts.",
        )
    return fine("host name", f"{host} is {', '.join(addresses)}")


def check_clock(
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    installed_s: float | None = None,
) -> Finding:
    """Check that the clock runs evenly, and is not in the past. Its time zone does not matter to jobs."""
    remedy = (
        "Let a time service keep the clock (chrony, systemd-timesyncd), which slews it and does not set it. Timers by "
        "processing time, expiry of state and commands, and logins to object stores go by it."
    )
    installed_s = Path(__file__).stat().st_mtime if installed_s is None else installed_s
    before = _difference(wall, monotonic)
    sleep(_WATCHED_S)
    jump_s = _difference(wall, monotonic) - before
    now_s = wall()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < installed_s - _DAY_S:
        return failed("clock", f"{shown}, which is before penstock was installed", remedy)
    if abs(jump_s) > _JUMP_S:
        return warning("clock", f"{shown}; it jumped by {jump_s:+.3f} s during this check", remedy)
    return fine("clock", f"{shown}, and runs evenly")


def _difference(wall: Callable[[], float], monotonic: Callable[[], float]) -> float:
    """Return how far the clock is ahead of the time since the start of the machine."""
    for _ in range(_READINGS):
        before = monotonic()
        shown = wall()
        after = monotonic()
        # A process that was suspended between two readings proves nothing.
        if after - before < _BRACKET_S:
            break
    return shown - (before + after) / 2
