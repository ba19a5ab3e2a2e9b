"""The doctor on the machine: each check against probes of a machine with a problem."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from checked_findings import told

from penstock.doctor.machine import (
    check_clock,
    check_cores,
    check_host_name,
    check_loopback,
    check_memory,
    check_open_files,
    check_port,
    check_server_port,
)
from penstock.machine.limits import Cores, Memory
from penstock.machine.local_server import free_port

GIB = 1 << 30


def test_a_container_with_part_of_the_cores_is_told() -> None:
    """Spark would run as many tasks at a time as the machine has cores."""
    told(check_cores(lambda: Cores(8)), "ok", "8")
    told(check_cores(lambda: Cores(8, 8.0)), "ok", "8")
    told(check_cores(lambda: Cores(8, 2.5)), "warning", "2.5 at a time", "local[2]' --parallelism 2")
    told(check_cores(lambda: Cores(8, 0.5)), "warning", "0.5", "local[1]' --parallelism 1")


@pytest.mark.parametrize(
    ("total", "available", "status", "remedy"),
    [
        (64, 60, "ok", ""),
        (64, 6, "warning", "--state-memory-mb"),
        (64, 2, "warning", "Stop other programs"),
        (2, 2, "failed", "more memory"),
    ],
)
def test_memory_is_for_the_jvm_the_workers_and_their_state(
    total: int, available: int, status: str, remedy: str
) -> None:
    """4 workers and the JVM take up to 3.2 GiB, with all state 7.2 GiB."""
    finding = check_memory(lambda: Memory(total * GIB, available * GIB), lambda: Cores(4))
    told(finding, status, f"{available}.0 GiB free of {total}.0 GiB", remedy)


def test_the_state_that_memory_leaves_room_for_is_told() -> None:
    """6 GiB minus 3.2 for JVM and workers leave each of 4 workers 0.7."""
    finding = check_memory(lambda: Memory(64 * GIB, 6 * GIB), lambda: Cores(4))
    assert "--state-memory-mb 724," in finding.remedy


@pytest.mark.parametrize(
    ("soft", "hard", "status"),
    [
        (1024, 1_048_576, "ok"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok"),
        (1024, 4095, "warning"),
        (512, 512, "failed"),
    ],
)
def test_java_raises_its_limit_of_files_to_the_hard_one(soft: int, hard: int, status: str) -> None:
    """So the hard limit counts."""
    finding = check_open_files(lambda: (soft, hard))
    told(finding, status, "any number of" if hard == resource.RLIM_INFINITY else str(soft))
    assert status == "ok" or "ulimit -n" in finding.remedy


def test_the_loopback_of_this_machine_answers() -> None:
    """Without it no test of penstock could run."""
    told(check_loopback(), "ok", "127.0.0.1")


def test_a_machine_without_a_loopback_is_told() -> None:
    """The cause may be a sandbox, or that all ports are taken."""

    def refuse() -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    told(check_loopback(refuse), "failed", "Cannot assign requested address", "interface lo")


def test_a_port_that_is_taken_is_told() -> None:
    """The message has the command that names the owner."""
    port = free_port()
    told(check_port(port), "ok", f"127.0.0.1:{port} is free")
    with socket.create_server(("127.0.0.1", port)):
        told(check_port(port), "failed", "Address already in use", f"ss -ltnp 'sport = :{port}'")


def test_the_port_of_a_server_may_be_taken() -> None:
    """The server itself may use it, so it is no failure."""
    port = free_port()
    told(check_server_port(port), "ok", f"127.0.0.1:{port} is free")
    with socket.create_server(("127.0.0.1", port)):
        told(check_server_port(port), "warning", "Address already in use", "--bind 127.0.0.1:PORT")


def test_a_machine_that_does_not_know_its_name_is_told() -> None:
    """Jobs run nevertheless."""

    def lost(name: str, port: None) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    told(check_host_name(lambda: "box", lost), "warning", "box has no address", "127.0.0.1 box")
    there = [(0, 0, 0, "", ("10.0.0.7", 0))] * 2
    told(check_host_name(lambda: "box", lambda name, port: there), "ok", "box is 10.0.0.7")


class Time:
    """A clock that a test moves, and one that runs by itself."""

    def __init__(self, set_by_s: float = 0.0) -> None:
        self.now_s = 2_000_000_000.0
        self.since_start_s = 50.0
        self.set_by_s = set_by_s

    def wall(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.since_start_s

    def sleep(self, seconds: float) -> None:
        self.since_start_s += seconds
        self.now_s += seconds + self.set_by_s


@pytest.mark.parametrize(
    ("set_by_s", "status"), [(0.0, "ok"), (0.01, "ok"), (1.5, "warning"), (-3.0, "warning")]
)
def test_a_clock_that_is_set_while_it_is_watched_is_told(set_by_s: float, status: str) -> None:
    """A clock slewed by a time service is ok."""
    time = Time(set_by_s)
    finding = check_clock(time.wall, time.monotonic, time.sleep, installed_s=1_900_000_000)
    told(finding, status, "2033-05-18", "chrony" if status != "ok" else "")


def test_a_clock_in_the_past_is_told() -> None:
    """A machine with an empty battery has one."""
    time = Time()
    finding = check_clock(time.wall, time.monotonic, time.sleep, installed_s=2_000_100_000)
    told(finding, "failed", "before penstock was installed", "Let a time service")


def test_a_process_that_is_put_aside_while_it_reads_the_clock_sees_no_jump() -> None:
    """This happens on a busy machine."""
    time = Time()
    delays: Iterator[float] = iter([0.0, 0.4, 0.0, 0.0, 0.0, 0.4] + [0.0] * 20)

    def monotonic() -> float:
        delay = next(delays)
        time.since_start_s += delay
        time.now_s += delay
        return time.since_start_s

    told(check_clock(time.wall, monotonic, time.sleep, installed_s=0), "ok")
