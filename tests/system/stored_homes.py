"""Checkpoints of tests on an object store, and the loss of the machine that works on one."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from job_process import JobProcess
from s3_server import S3Server
from sink_kills import BUSY_S, await_progress, kill_process

from penstock.checkpoints.stored_checkpoint import working_folder

__all__ = ["checkpoint_on", "lose_disk", "lose_machines"]


@contextlib.contextmanager
def checkpoint_on(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the place of a checkpoint; remove its working folder in the end."""
    server.put("checkpoints", "there", b"")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://checkpoints/jobs/{time.time_ns()}"
    try:
        yield uri
    finally:
        lose_disk(uri)


def lose_disk(uri: str) -> None:
    """Delete the local files of a lost machine that belong to the checkpoint."""
    shutil.rmtree(working_folder(uri), ignore_errors=True)


def lose_machines(
    uri: str,
    arguments: Sequence[str],
    folder: Path,
    victims: Iterable[str],
    chance: random.Random,
    progress: Callable[[], int],
    note: Callable[[str], None],
    patience_s: float = BUSY_S,
) -> None:
    """Start a job for each victim: it is killed once the run has made progress, and its machine's disk is lost."""
    for victim in victims:
        with JobProcess(arguments, folder) as job:
            await_progress(job, progress, patience_s)
            time.sleep(chance.uniform(0, 2))
            note(victim)
            kill_process(victim, job)
        lose_disk(uri)
