"""A network share that is away while a job reads it ends the run, but loses no record and no command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration_support import read_lines, write_lines

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.commands.receipt_segments import NewReceipts
from penstock.errors import ExternalSystemError
from penstock.sources.file_source import FileLog


@dataclass
class Number:
    """A number of a key."""

    key: int
    n: int


class Factor(ps.ProcessFunction):
    """Multiplies by a setting."""

    factor = ps.Setting(int, 1)

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        yield Number(number.key, number.n * self.factor.get())


def factor_job() -> ps.Job:
    job = ps.Job("factor", key_groups=4)
    job.data_stream("numbers", schema=Number).key_by("key").process("factor", Factor()).sink_to("products")
    return job


def found(folder: Path, stream: str, checkpoint: Path) -> None:
    """Record the files of a folder in the checkpoint, like a run that ends right after."""
    binding: Any = parse_binding(stream, f"jsonl:{folder}", "data")
    FileLog(binding, checkpoint / "sources" / f"{stream}.files").freeze()


@pytest.mark.parametrize("away", [pytest.param("numbers", marks=pytest.mark.chaos), "commands"])
def test_the_micro_batch_of_a_file_that_is_away_is_done_again(
    run_job: Any, tmp_path: Path, away: str
) -> None:
    """The run fails with a clear message and commits nothing; once the file is back, it is read normally."""
    write_lines(tmp_path / "numbers", "a.jsonl", [{"key": 1, "n": 5}])
    command = {
        "id": "c",
        "kind": "set",
        "target": {"step": "factor"},
        "payload": {"factor": 3},
    }
    write_lines(tmp_path / "commands", "a.jsonl", [json.dumps(command)])
    for stream in ("numbers", "commands"):
        found(tmp_path / stream, stream, tmp_path / "checkpoint")
    file = tmp_path / away / "a.jsonl"
    file.rename(tmp_path / "elsewhere")
    bindings = {name: f"jsonl:{tmp_path}/{name}" for name in ("numbers", "commands", "products")}
    with pytest.raises(
        ExternalSystemError, match=f"'{away}': the file {file} .*disappeared.*when the job is started again"
    ):
        run_job(factor_job(), bindings)
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    (tmp_path / "elsewhere").rename(file)
    summary = run_job(factor_job(), bindings)
    assert summary.dead_letters == 0
    assert read_lines(tmp_path / "products") == [{"key": 1, "n": 15}]
    assert NewReceipts(tmp_path / "checkpoint", from_start=True).read()[-1].status == "APPLIED"


@pytest.mark.parametrize("done", [pytest.param(0, marks=pytest.mark.chaos), 1])
def test_a_plan_that_no_output_has_is_made_anew(run_job: Any, tmp_path: Path, done: int) -> None:
    """The new plan has the sources' present bounds, and each record once; the given number makes it happen
    only once.
    """
    bindings = {name: f"jsonl:{tmp_path}/{name}" for name in ("numbers", "products")}
    for n in range(done):
        write_lines(tmp_path / "numbers", f"{n}.jsonl", [{"key": 1, "n": n}])
        run_job(factor_job(), bindings)
    for n in range(done, done + 3):
        write_lines(tmp_path / "numbers", f"{n}.jsonl", [{"key": 1, "n": n}])
    found(tmp_path / "numbers", "numbers", tmp_path / "checkpoint")
    away = tmp_path / "numbers" / f"{done + 1}.jsonl"
    away.rename(tmp_path / "elsewhere")
    with pytest.raises(ExternalSystemError, match="disappeared"):
        run_job(factor_job(), bindings)
    (tmp_path / "elsewhere").rename(away)
    bindings["numbers"] += "?max_files_per_batch=1"
    assert run_job(factor_job(), bindings, replan=done).batches == 3
    assert [line["n"] for line in read_lines(tmp_path / "products")] == list(range(done + 3))
    assert run_job(factor_job(), bindings, replan=done).batches == 0
