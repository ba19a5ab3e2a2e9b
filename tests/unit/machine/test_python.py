"""The interpreter for Spark's Python processes: the same one, with a cleaner import path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.machine.python import interpreter_without

PROGRAM = "import os, sys; print(sys.executable, sys.argv[1:], os.environ['PYTHONPATH'])"


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/with space/a.zip:/b's.zip", ""),
        ("/with space/a.zip:/b's.zip:/users/own", "/users/own"),
        ("/users/own:/with space/a.zip", "/users/own:/with space/a.zip"),
        ("", ""),
    ],
)
def test_entries_at_the_front_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, left: str
) -> None:
    """Only those at the front are removed, and all of them; arguments are unchanged; a second call finds the
    same program.
    """
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "the cache"))
    program = interpreter_without([Path("/with space/a.zip"), Path("/b's.zip")])
    assert interpreter_without([Path("/with space/a.zip"), Path("/b's.zip")]) == program
    out = subprocess.check_output(
        [str(program), "-c", PROGRAM, "one two", "$x"], env={**os.environ, "PYTHONPATH": path}, text=True
    )
    assert out == f"{sys.executable} ['one two', '$x'] {left}\n"
    assert len(list(program.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("variable", "arguments", "is_forked"),
    [
        ("there", ["-m", "pyspark.daemon", "pyspark.worker"], True),
        ("there", ["-m", "penstock.spark.startup.worker_daemon"], True),
        ("there", ["-m", "this"], False),
        ("", ["-m", "pyspark.version"], False),
    ],
)
def test_modules_of_spark_are_left_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, arguments: list[str], is_forked: bool
) -> None:
    """This holds where the variable is set; the interpreter runs everything else."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "the cache"))
    client = tmp_path / "a client.py"
    client.write_text("import sys; print('forked', *sys.argv[1:])")
    program = interpreter_without([Path("/a.zip")], forked=("FORKED_BY", client))
    environment = {"PATH": "/usr/bin:/bin", "FORKED_BY": variable}
    done = subprocess.run(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert (done.stdout == f"forked {' '.join(arguments)}\n".encode()) is is_forked
