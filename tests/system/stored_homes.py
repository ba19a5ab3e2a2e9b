"""Checkpoints of tests on an object store, and the loss of a machine that works on one."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator

import pytest
from s3_server import S3Server

from penstock.checkpoints.stored_checkpoint import working_folder

__all__ = ["checkpoint_on", "lose_disk"]


@contextlib.contextmanager
def checkpoint_on(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The place of a checkpoint; its working folder is removed in the end."""
    server.put("checkpoints", "there", b"")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://checkpoints/jobs/{time.time_ns()}"
    try:
        yield uri
    finally:
        lose_disk(uri)


def lose_disk(uri: str) -> None:
    """What a machine that is gone had of the checkpoint."""
    shutil.rmtree(working_folder(uri), ignore_errors=True)
