"""Sink partitions without a keyed step: a replay gives each the same records, whatever tasks read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration_support import RunJob

import penstock as ps
from penstock.errors import JobFailedError
from penstock.sinks.file_sink import FilesSink

BATCH, PARTITION = r"\d{10}", r"(\d{5})"


@dataclass
class Line:
    """A line and its origin."""

    file: str
    number: int


job = ps.Job("lines", key_groups=16)
job.data_stream("lines", schema=Line).filter(lambda line: line.number >= 0).sink_to("out")


def write_file(folder: Path, name: str, lines: int) -> None:
    """Write lines of equal size."""
    text = "".join(f'{{"file": "{name}", "number": {number:3}}}\n' for number in range(lines))
    (folder / f"{name}.jsonl").write_text(text)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, str]]:
    """Return what each sink partition got, by attempt; the sink acts as one that commits in its tasks."""
    found: list[dict[int, str]] = []
    commit = FilesSink.commit

    def note(sink: FilesSink, batch_id: int, messages: Sequence[bytes]) -> None:
        names = re.findall(rf"{BATCH}-{PARTITION}-\S+?\.jsonl", b" ".join(messages).decode())
        staged = sorted(Path(sink._binding.directory).glob(".staging-*/*.jsonl"))
        if sink._binding.stream == "out" and names:
            found.append({int(path.name.split("-")[1]): path.read_text() for path in staged})
            if len(found) == 1:
                raise RuntimeError("the driver is killed")
        commit(sink, batch_id, messages)

    monkeypatch.setattr(FilesSink, "commits_in_tasks", True)
    monkeypatch.setattr(FilesSink, "commit", note)
    return found


def test_a_replay_that_reads_in_other_tasks_writes_the_same(
    run_job: RunJob, tmp_path: Path, seen: list[dict[int, str]]
) -> None:
    """A file that has grown changes the division of the reading; each sink partition gets the same records."""
    folder = tmp_path / "lines"
    folder.mkdir()
    # The middle of the small file is the middle of all bytes, so that one more reading position moves it to
    # the other task.
    for name, lines in (("a", 100), ("b", 2), ("c", 100)):
        write_file(folder, name, lines)
    bindings = {"lines": f"jsonl:{folder}", "out": f"jsonl:{tmp_path / 'out'}"}
    with pytest.raises(JobFailedError, match="the driver is killed"):
        run_job(job, bindings, parallelism=2)
    with (folder / "c.jsonl").open("a") as file:
        file.write('{"file": "c", "number": 999}\n')
    run_job(job, bindings, parallelism=2)
    before, after = seen
    assert sum(text.count("\n") for text in before.values()) == 202
    assert after == before
    assert len(before) == 2
