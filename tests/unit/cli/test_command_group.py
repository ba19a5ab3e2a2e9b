"""The command group: a command loads what it needs, and no other commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from loaded_modules import loaded_by
from typed_commands import typed

from penstock.cli import app
from penstock.cli.command_group import CommandGroup

# It stops where the JVM would start.
PROGRAM = """
import sys
from penstock.spark.startup import jvm_ahead

def start(of):
    print(of.master, of.is_lean, dict(of.more), *sorted(sys.modules))
    raise SystemExit(0)

jvm_ahead.jvm_ahead = start
from penstock.cli import app
app()
"""
# It starts no JVM, and stops where the session would take it.
MATCH = """
import contextlib
from penstock.spark.startup import jvm_ahead

started = []
jvm_ahead.jvm_ahead = lambda of: started.append(of) or contextlib.nullcontext()

def take(of):
    print(of == started[0])
    raise SystemExit(0)

jvm_ahead.take_jvm_ahead = take
from penstock.cli import app
app()
"""
JOB = """CREATE STREAM readings (room STRING) WITH ('binding' = 'jsonl:.');
INSERT INTO warm SELECT * FROM readings;
"""
HEAVY = {"numpy", "pyarrow", "pandas", "pyspark", "penstock.jobs.runner", "penstock.server", "rich.table"}


def test_a_command_does_not_load_the_others() -> None:
    """Nor what only they need."""
    codes, modules = loaded_by(["version"])
    assert codes == [0]
    assert not HEAVY & modules
    assert {name for name in modules if name.startswith("penstock.cli.")} == {"penstock.cli.command_group"}


@pytest.mark.parametrize("command", [["run", "job.py"], ["sql", "job.sql"]])
def test_a_run_starts_its_jvm_before_it_loads_anything_large(command: list[str], tmp_path: Path) -> None:
    """The JVM takes longest to be ready, so all else is loaded meanwhile."""
    more = ["--master", "local[3]", "--checkpoint-interval", "5s", "--spark", "spark.ui.port=4050"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, *more],
        check=True,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    start, _, rest = done.stdout.partition("} ")
    assert start == "local[3] True {'spark.ui.port': '4050'"
    assert not HEAVY & set(rest.split())


@pytest.mark.parametrize("more", [[], ["--checkpoint-interval=5s"], ["--spark=spark.ui.port=4050"]])
def test_the_session_wants_the_jvm_that_was_started(more: list[str], tmp_path: Path) -> None:
    """Otherwise another one would start, and the run would begin late without a word."""
    (tmp_path / "job.sql").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-c", MATCH, "sql", "job.sql", "-D", "warm=jsonl:warm", *more],
        check=True,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    # The first line is the id of the run.
    assert done.stdout.split()[1:] == ["True"]


def test_sql_that_is_only_explained_starts_no_jvm(tmp_path: Path) -> None:
    """The file is read at once."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "sql", "--explain", "job.sql"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "job.sql" in done.stderr


def test_a_name_that_is_misspelt_is_corrected() -> None:
    """Without loading the commands."""
    result = typed("rum", "job.py")
    assert result.exit_code == 2
    assert "Did you mean 'run'" in result.output


def test_help_names_all_commands_in_order() -> None:
    """The first are those of a job's life."""
    output = typed("--help").output
    names = ["init", "run", "sql", "submit", "list", "savepoint", "query", "control", "doctor", "version"]
    places = [output.index(f" {name} ") for name in names]
    assert places == sorted(places)
    assert "Dynamically controlled streams on Apache Spark." in output


def test_commands_can_be_added_and_removed() -> None:
    """As with any group of Typer's."""
    group = CommandGroup(name="penstock")
    count = len(group.commands)
    group.add_command(app, "more")  # type: ignore[arg-type]  # any object will do
    assert group.commands["more"] is app
    del group.commands["more"]
    assert len(group.commands) == count
    with pytest.raises(KeyError):
        group.commands["more"]
