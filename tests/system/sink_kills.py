"""Kills of a job that writes to a server, and of that server, under load; a last run does the rest."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from file_feed import COUNTING_JOB
from job_process import JobProcess, await_true, kill, run_arguments

from penstock.jobs.settings import RunSettings

__all__ = ["Feed", "KilledSink", "newest_commit", "victims"]


def victims(server: str, count: int) -> list[str]:
    """Whom to kill, in turn."""
    kinds = ("driver", "JVM", "worker", server)
    return [kinds[number % len(kinds)] for number in range(count)]


class Feed(Protocol):
    """What gives a job its readings."""

    def feeding(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class KilledSink:
    """A job, and what takes its server away for a moment."""

    folder: Path
    feed: Feed
    settings: Callable[..., RunSettings]
    interrupt: Callable[[], None]

    def survive(self, names: Iterable[str], chance: random.Random, note: Callable[[str], None]) -> None:
        """Kill one after the other, each once the run has committed something, and let a bounded run do the rest."""
        arguments = run_arguments(COUNTING_JOB, self.settings())
        with self.feed.feeding():
            for victim in names:
                with JobProcess(arguments, self.folder) as job:
                    before = newest_commit(self.folder)
                    await_true(
                        lambda job=job, before=before: not job.running or newest_commit(self.folder) > before,
                        lambda: "",
                    )
                    assert job.running, job.err
                    time.sleep(chance.uniform(0, 2))
                    note(victim)
                    self._strike(victim, job)
                    time.sleep(chance.uniform(0, 2))
        with JobProcess(run_arguments(COUNTING_JOB, self.settings(bounded=True)), self.folder) as job:
            assert job.wait().code == 0, job.err

    def _strike(self, victim: str, job: JobProcess) -> None:
        found = {"driver": lambda: [job.process.pid], "JVM": job.jvms, "worker": job.workers}
        if victim not in found:
            self.interrupt()
            return
        pids = found[victim]()
        assert pids, victim
        kill(pids[0], signal.SIGKILL)


def newest_commit(folder: Path) -> int:
    """The newest micro-batch that a run has committed; what it has sent may be of one that it repeats."""
    return max((int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)
