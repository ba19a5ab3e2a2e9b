"""Shell completion: the command line completes its subcommands, options and choices, in the shells that it knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app


def completed(shell: str, *words: str) -> list[str]:
    """What a shell is offered behind these words, of which the last is not finished; as the shells ask for it."""
    line = " ".join(("penstock", *words))
    asked = {
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = CliRunner().invoke(app, [], prog_name="penstock", env=asked)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    # Shells take an empty line for nothing.
    return [line for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["do"], {"doctor"}),
        (["st"], {"state", "stop"}),
        (["state", ""], {"diff", "dump", "get", "ls", "plan", "verify"}),
        (["control", "s"], {"send", "status"}),
        (["run", "job.py", "--from-"], {"--from-dump", "--from-savepoint"}),
        (["doctor", "--p"], {"--port"}),
        (["state", "dump", "--format", ""], {"csv", "jsonl", "parquet"}),
        (["doctor", "-o", "j"], {"json"}),
        (["--show"], {"--show-completion"}),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], offered: set[str]) -> None:
    """Those that begin with what is there, and no others."""
    assert set(completed("bash", *words)) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_help_beside_the_words(shell: str) -> None:
    """In the form of each."""
    text = "\n".join(completed(shell, "doctor", "--"))
    assert "--checkpoint" in text
    assert "A checkpoint to check" in text


def test_places_are_left_to_the_shell() -> None:
    """It completes names of files where nothing is offered."""
    assert completed("bash", "run", "jo") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_once_it_is_installed(tmp_path: Path) -> None:
    """As a user does it: install, open another shell, press tab."""
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def bash(script: str) -> str:
        return subprocess.run(
            ["bash", "--norc", "-c", script],
            env={**os.environ, "HOME": str(tmp_path), "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    # With one command alone the shell would become that command, which looks for the shell that started it.
    assert "bash completion installed" in bash("penstock --install-completion; true")
    assert "complete -o default -F _penstock_completion penstock" in bash("penstock --show-completion; true")
    pressed = (
        'COMP_WORDS=(penstock state d); COMP_CWORD=2; _penstock_completion penstock; echo "${COMPREPLY[*]}"'
    )
    assert bash(f'. "$HOME/.bashrc"; {pressed}').split() == ["dump", "diff"]
