"""A checkpoint has one owner: locks exclude others, and an epoch tells a run that it has lost ownership."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.checkpoints.ownership import Ownership, lock_checkpoint
from penstock.errors import CheckpointError, FencedError

HOLDER = """
import sys, threading
from pathlib import Path
from penstock.checkpoints.ownership import lock_checkpoint
with lock_checkpoint(Path(sys.argv[1]), threading.Event(), 0):
    print("held", flush=True)
    sys.stdin.read()
"""
JVM_LEFT_BEHIND = """
import fcntl, sys
file = open(sys.argv[1] + "/in-use.lock", "w")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock until its input ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=pipe, stdout=pipe, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "held\n"
        yield running


def hold(folder: Path, timeout_s: float) -> None:
    with lock_checkpoint(folder, threading.Event(), timeout_s):
        pass


@pytest.mark.parametrize("code", [HOLDER, JVM_LEFT_BEHIND])
def test_a_second_run_is_refused_and_leaves_no_trace(tmp_path: Path, code: str) -> None:
    """The checkpoint may be held by a driver, or by the JVM of a killed driver."""
    with process(code, tmp_path):
        with pytest.raises(CheckpointError, match="is in use by another run of the job"):
            hold(tmp_path, 0.2)
        assert [path.name for path in tmp_path.iterdir()] == ["in-use.lock"]
    hold(tmp_path, 0)


def test_a_second_run_waits_for_the_first_to_end(tmp_path: Path) -> None:
    """This is what a restarted job does after a kill."""
    with process(HOLDER, tmp_path) as other:
        assert other.stdin is not None
        start = time.monotonic()
        threading.Timer(0.3, other.stdin.close).start()
        hold(tmp_path, 30)
        assert 0.2 < time.monotonic() - start < 10


def test_a_run_that_is_to_stop_does_not_wait(tmp_path: Path) -> None:
    """Ctrl-C ends the wait."""
    stop = threading.Event()
    stop.set()
    with process(HOLDER, tmp_path), pytest.raises(CheckpointError), lock_checkpoint(tmp_path, stop, 60):
        pass


def test_the_lock_leaves_a_place_for_the_jvm(tmp_path: Path) -> None:
    """The run's JVM locks its own part while the driver holds another."""
    with lock_checkpoint(tmp_path, threading.Event(), 0), process(JVM_LEFT_BEHIND, tmp_path):
        pass


def test_a_run_in_the_same_process_is_refused_and_takes_no_lock_away(tmp_path: Path) -> None:
    """The process of the run may itself check whether it runs."""
    with lock_checkpoint(tmp_path, threading.Event(), 0):
        (tmp_path / "same").symlink_to(tmp_path)
        for folder in (tmp_path, tmp_path / "same"):
            with pytest.raises(CheckpointError, match="is in use by another run of the job"):
                hold(folder, 0)
        code = HOLDER.replace('print("held"', 'print("taken"')
        refused = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert "is in use by another run of the job" in refused.stderr
    hold(tmp_path, 0)


def test_a_run_owns_a_checkpoint_until_another_begins(tmp_path: Path) -> None:
    """Then the first run gets an error, and the second continues."""
    first = Ownership.take(tmp_path)
    first.check()
    second = Ownership.take(tmp_path)
    second.check()
    assert json.loads((tmp_path / "epoch.json").read_bytes())["epoch"] == 2
    with pytest.raises(FencedError, match=r"Another run has taken over .*epoch is 2, this run's 1"):
        first.check()


def test_a_lost_epoch_does_not_bring_an_old_run_back(tmp_path: Path) -> None:
    """Numbers restart if the file was deleted, but a run knows its own number."""
    first = Ownership.take(tmp_path)
    (tmp_path / "epoch.json").unlink()
    assert isinstance(first.lost(), FencedError)
    Ownership.take(tmp_path).check()
    with pytest.raises(FencedError):
        first.check()


@pytest.mark.parametrize("content", [b"", b'{"epoch": 3', b"[]"])
def test_a_damaged_epoch_is_told_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    """The file can be recreated by a user who knows that no run is active."""
    (tmp_path / "epoch.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"epoch\.json cannot be read .* then delete the file"):
        Ownership.take(tmp_path)
