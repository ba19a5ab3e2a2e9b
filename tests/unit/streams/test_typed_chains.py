"""Typed chains: the messages of mypy and pyright for valid and invalid chains of streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CHAINS = Path(__file__).parent / "chains"
FILES = sorted(CHAINS.glob("*.py"))
TEMPLATE = ROOT / "src" / "penstock" / "projects" / "template"

# The pyright rule for each mypy message.
RULES = {
    "has no attribute": "reportAttributeAccessIssue",
    "Argument": "reportArgumentType",
    "No overload": "reportArgumentType",
    "Cannot infer": "reportArgumentType",
    "Dict entry": "reportArgumentType",
}

Errors = dict[tuple[str, int], list[str]]


def run(program: str, *arguments: Any, folder: Path = ROOT, **variables: str) -> str:
    """Return a type checker's output; a failing call raises."""
    done = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], str]:
    """Return the messages expected by the comments, by file and line."""
    return {
        (path.name, number): found.group(1)
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := re.search(r"# E: (.+)", line))
    }


def run_pyright(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Return pyright's errors for the files of a folder."""
    told = run("pyright", "--outputjson", "--pythonpath", sys.executable, *names, folder=folder)
    report: list[dict[str, Any]] = json.loads(told)["generalDiagnostics"]
    return [one for one in report if one["severity"] == "error"]


def test_mypy_finds_each_mistake_and_no_other(expected: dict[tuple[str, int], str]) -> None:
    """Each line names the message. Like that of `make check`, the cache stays for the next run."""
    options = ["--config-file", CHAINS / "mypy.ini", "--cache-dir", ".mypy_cache/chains"]
    told = run("mypy", *options, *FILES, MYPYPATH=str(CHAINS))
    errors: Errors = defaultdict(list)
    for line in told.splitlines():
        found = re.match(r".*?([^/]+\.py):(\d+): error: (.+)", line)
        if found:
            errors[found[1], int(found[2])].append(found[3])
    assert errors.keys() == expected.keys(), told
    for place, messages in errors.items():
        assert len(messages) == 1, messages
        assert expected[place] in messages[0], place


def test_pyright_finds_each_mistake_and_no_other(expected: dict[tuple[str, int], str]) -> None:
    """The rule corresponds to mypy's message."""
    errors: Errors = defaultdict(list)
    for one in run_pyright(CHAINS, "."):
        errors[Path(one["file"]).name, one["range"]["start"]["line"] + 1].append(one["rule"])
    assert errors.keys() == expected.keys()
    for place, rules in errors.items():
        rule = next(rule for words, rule in RULES.items() if words in expected[place])
        assert rules == [rule], place


def test_pyright_has_nothing_against_a_new_project() -> None:
    """Its functions override those of penstock, with any parameter names."""
    assert run_pyright(TEMPLATE, "job.py", "project_name") == []


def test_the_package_says_that_it_has_types() -> None:
    """Without `py.typed` type checkers would treat everything as `Any`."""
    assert (ROOT / "src" / "penstock" / "py.typed").is_file()
