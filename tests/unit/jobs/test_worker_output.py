"""Worker output: printed lines are logged once, rate-limited, and the output file is bounded."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from penstock.errors import JobDefinitionError
from penstock.jobs.settings import RunSettings
from penstock.jobs.worker_output import WorkerOutput, output_log


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, output_log.name)
    return caplog


def append(path: Path, text: bytes) -> None:
    """Append like processes that have had the file open since it was created."""
    with path.open("ab") as file:
        file.write(text)


def test_lines_are_logged_once_and_whole(tmp_path: Path, printed: pytest.LogCaptureFixture) -> None:
    """Lines of earlier runs are skipped, an unfinished line waits for its end, and undecodable bytes are
    escaped.
    """
    path = tmp_path / "output.log"
    append(path, b"of before\n")
    output = WorkerOutput(path, 1 << 20)
    append(path, b"one\n\ntwo\nthr")
    output.look()
    output.look()
    append(path, b"ee\n\xff\n" + b"x" * 5000 + b"\n")
    output.look()
    assert printed.messages == ["one", "two", "three", "\\xff", "x" * 2000 + " ..."]


def test_what_comes_while_it_follows_is_logged(tmp_path: Path, printed: pytest.LogCaptureFixture) -> None:
    """Lines are followed until the end of the run."""
    with WorkerOutput(tmp_path / "output.log", 1 << 20):
        append(tmp_path / "output.log", b"the last word\n")
    assert printed.messages == ["the last word"]


def test_a_job_that_prints_much_does_not_fill_the_log(
    tmp_path: Path, printed: pytest.LogCaptureFixture
) -> None:
    """Surplus lines are counted instead of logged, and remain in the file."""
    path = tmp_path / "output.log"
    output = WorkerOutput(path, 100 << 20)
    append(path, b"".join(b"line %d\n" % number for number in range(1050)))
    output.look()
    assert printed.messages[:50] == [f"line {number}" for number in range(50)]
    assert printed.messages[50:] == [f"1,000 more lines were printed within a moment; they are in {path}."]
    printed.clear()
    append(path, b"y" * 99 + b"\n" + b"z" * (3 << 20) + b"\nend\n")
    output.look()
    assert printed.messages[1:] == ["end", f"More lines were printed within a moment; they are in {path}."]


def test_the_file_begins_anew_when_it_is_too_large(tmp_path: Path, printed: pytest.LogCaptureFixture) -> None:
    """Processes with the file open continue in the new one; the old content is kept once, and each line is
    logged once.
    """
    path = tmp_path / "output.log"
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    output = WorkerOutput(path, 1000)
    lines = [f"line {number:04d}" for number in range(1000)]
    for begin in range(0, 1000, 40):
        os.write(writer, "".join(f"{line}\n" for line in lines[begin : begin + 40]).encode())
        output.look()
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3000
    os.close(writer)
    assert printed.messages == lines
    assert sorted(file.name for file in tmp_path.iterdir()) == ["output.log", "output.log.1"]
    kept = (tmp_path / "output.log.1").read_text() + path.read_text()
    assert kept.splitlines() == lines[-len(kept.splitlines()) :]


def test_a_bound_of_nothing_is_refused() -> None:
    """The error names the setting."""
    with pytest.raises(JobDefinitionError, match="log_mb is 0; it must be at least 1"):
        RunSettings(log_mb=0)
