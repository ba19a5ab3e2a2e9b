"""A new project passes its own tests on Spark, by the commands in its README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app


@pytest.mark.parametrize(
    ("chosen", "option", "passed"),
    [
        (["-k", "test_watch"], [], 4),
        pytest.param([], [], 5, marks=pytest.mark.chaos),
        pytest.param([], ["--sql"], 4, marks=pytest.mark.chaos),
    ],
    ids=["without Spark", "python", "sql"],
)
def test_a_new_project_passes_its_own_tests(
    chosen: list[str], option: list[str], passed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test runs `penstock init`, then the README's test command; one of those tests runs the sample.

    `make test` runs the tests without Spark; tests/unit/projects runs the sample without it.
    """
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["init", "water-level", *option])
    assert made.exit_code == 0, made.output
    project = tmp_path / "water-level"
    before = {path for path in project.rglob("*") if path.is_file()}
    (command,) = re.findall(r"^python (-m pytest)$", (project / "README.md").read_text(), re.MULTILINE)
    assert made.stdout == f"cd water-level && python {command}\n"
    tested = subprocess.run(
        [sys.executable, *command.split(), *chosen, "-p", "no:cacheprovider"],
        cwd=project,
        # Of this environment only pytest itself is used: its plugins are not the project's.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert f"{passed} passed" in tested.stdout
    assert {path for path in project.rglob("*") if path.is_file()} == before, "tests leave nothing behind"
