"""The command `penstock sql`: what it prints of a file, and what it refuses, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.doctor.bindings import examine_bindings
from penstock.jobs.job_loader import load_job

STREAM = "CREATE STREAM readings (room STRING, celsius DOUBLE) WITH ('binding' = 'jsonl:{folder}');\n"
PLAN = "1. data stream readings (room STRING, celsius DOUBLE)\n2. where {name}.where of 1: celsius > 30\n"


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def file(text: str, name: str = "rooms.sql") -> str:
        path = tmp_path / name
        path.write_text(STREAM.format(folder=tmp_path) + text)
        return str(path)

    return file


def test_a_file_that_only_explains_is_not_run(write) -> None:  # type: ignore[no-untyped-def]
    done = CliRunner().invoke(app, ["sql", write("EXPLAIN SELECT * FROM readings WHERE celsius > 30")])
    assert done.exit_code == 0, done.output
    assert done.stdout == PLAN.format(name="result") + "3. sink result of 2\n"


def test_the_option_explains_the_whole_job(write) -> None:  # type: ignore[no-untyped-def]
    file = write("INSERT INTO warm SELECT * FROM readings WHERE celsius > 30")
    done = CliRunner().invoke(app, ["sql", file, "--explain"])
    assert done.exit_code == 0, done.output
    assert done.stdout == PLAN.format(name="warm") + "3. sink warm of 2\n"


def test_a_bounded_run_is_explained_with_its_micro_batches(write) -> None:  # type: ignore[no-untyped-def]
    done = CliRunner().invoke(app, ["sql", write("SELECT * FROM readings"), "--bounded", "--explain"])
    assert done.exit_code == 0, done.output
    # The SQL file itself is in the folder.
    assert "bounded run from the start: through 1 micro-batch\n   readings: 1 file, " in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rooms.sql", "SELECT nothing FROM readings", "There is no field 'nothing'"),
        ("rooms.sql", "INSERT INTO warm SELECT * FROM readings", "'warm' has no binding"),
        ("rooms.py", "", "is not a SQL file"),
    ],
)
def test_a_mistake_is_a_sentence(write, name: str, text: str, said: str) -> None:  # type: ignore[no-untyped-def]
    done = CliRunner().invoke(app, ["sql", write(text, name), "--bounded"])
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output


def test_the_doctor_looks_at_the_bindings_of_the_file(write) -> None:  # type: ignore[no-untyped-def]
    job = load_job(write("INSERT INTO warm SELECT * FROM readings")).job
    (finding,) = [one for one in examine_bindings(job, {"warm": "discard:"}) if "readings" in one.check]
    assert finding.check == "-D readings"
