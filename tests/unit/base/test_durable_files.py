"""Durable files: of concurrent writers one wins completely, and no temporary file remains."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest
from threads_at_once import call_at_once

from penstock.base.durable import write_atomically


def test_writers_with_one_number_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, and containers whose first processes have the same id, would otherwise truncate each other's
    file.
    """
    path = tmp_path / "file"
    contents = [bytes([number]) * 200_000 for number in range(8)]
    together = threading.Barrier(len(contents))
    real = os.fsync
    failed: list[BaseException] = []

    def meet(file: int) -> None:
        real(file)
        together.wait(20)

    def write(content: bytes) -> None:
        try:
            write_atomically(path, content)
        except BaseException as e:
            failed.append(e)

    monkeypatch.setattr("penstock.base.durable.os.fsync", meet)
    call_at_once([partial(write, content) for content in contents])
    assert failed == []
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the old content stays, and no part of the new one."""
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.base.durable.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
