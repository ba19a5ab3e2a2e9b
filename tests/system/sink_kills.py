"""Kills of a job under load, and of the server that it writes to; a last run completes the work."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from file_feed import COUNTING_JOB
from job_process import PATIENCE_S, JobProcess, await_true, kill, run_arguments

from penstock.jobs.settings import RunSettings

__all__ = [
    "BUSY_S",
    "Feed",
    "KilledSink",
    "Server",
    "await_progress",
    "finish",
    "interrupt_briefly",
    "kill_process",
    "newest_commit",
    "strike",
    "victims",
]


# On a busy machine a start and the backlog may take this long.
BUSY_S = 900.0
PROCESSES = ("driver", "JVM", "worker")


def victims(server: str | None, count: int) -> list[str]:
    """Return the victims in turn; without a server only processes of the job."""
    kinds = PROCESSES if server is None else (*PROCESSES, server)
    return [kinds[number % len(kinds)] for number in range(count)]


class Feed(Protocol):
    """A source of readings for a job."""

    def feeding(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class KilledSink:
    """A job, and how to take its server down for a moment, if it has one."""

    folder: Path
    feed: Feed
    settings: Callable[..., RunSettings]
    interrupt: Callable[[], None] | None = None
    job: Path = COUNTING_JOB
    patience_s: float = PATIENCE_S

    def survive(self, names: Iterable[str], chance: random.Random, note: Callable[[str], None]) -> None:
        """Kill one victim after another, each once the run has committed something; a bounded run does the
        rest.
        """
        arguments = run_arguments(self.job, self.settings())
        with self.feed.feeding():
            for victim in names:
                with JobProcess(arguments, self.folder) as job:
                    await_progress(job, lambda: newest_commit(self.folder), self.patience_s)
                    time.sleep(chance.uniform(0, 2))
                    note(victim)
                    strike(victim, job, self.interrupt)
                    time.sleep(chance.uniform(0, 2))
        with JobProcess(run_arguments(self.job, self.settings(bounded=True)), self.folder) as job:
            assert job.wait(self.patience_s).code == 0, job.err


def strike(victim: str, job: JobProcess, interrupt: Callable[[], None] | None) -> None:
    """Kill a process of a job, or take its server down for a moment."""
    if victim in PROCESSES:
        kill_process(victim, job)
    else:
        assert interrupt is not None, victim
        interrupt()


def kill_process(
    victim: str, job: JobProcess, choose: Callable[[Sequence[int]], int] = itemgetter(0)
) -> None:
    """Kill the driver, a JVM or a worker of a job: the first, or another that is chosen."""
    found = {"driver": lambda: [job.process.pid], "JVM": job.jvms, "worker": job.workers}[victim]()
    assert found, victim
    kill(choose(found), signal.SIGKILL)


class Server(Protocol):
    """A server that can be killed and restarted."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


def interrupt_briefly(server: Server) -> None:
    """Take a server down for half a second."""
    server.kill()
    time.sleep(0.5)
    server.start()


def await_progress(job: JobProcess, count: Callable[[], int], timeout_s: float = PATIENCE_S) -> None:
    """Wait until a run has counted more, and is still running."""
    before = count()
    await_true(lambda: not job.running or count() > before, lambda: job.err, timeout_s)
    assert job.running, job.err


def finish(
    arguments: Sequence[str],
    folder: Path,
    count: Callable[[], int],
    wanted: int,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Let a last run count the rest, and stop it."""
    with JobProcess(arguments, folder) as job:
        await_true(
            lambda: not job.running or count() >= wanted,
            lambda: f"{count()} of {wanted}: {job.err}",
            timeout_s,
        )
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0


def newest_commit(folder: Path) -> int:
    """Return the newest micro-batch that a run has committed; what it has sent may be part of a repeated one."""
    return max((int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)
