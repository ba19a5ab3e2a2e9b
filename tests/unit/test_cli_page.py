"""The page of the command line: docs/cli.md has every command with every option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands with their whole names."""
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


SERVER = ("--server", "--home", "--ca")
ALL = dict(commands(get_command(app), "penstock"))


def section(name: str) -> str:
    """The part of the page on a command; empty when there is none."""
    lines = PAGE.read_text().splitlines()
    begins = [n for n, line in enumerate(lines) if line.lstrip("#").startswith((f" `{name} ", f" `{name}`"))]
    ends = [n for n, line in enumerate(lines) if line.startswith("#")]
    return "\n".join(
        line for begin in begins for line in lines[begin : min((n for n in ends if n > begin), default=None)]
    )


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_documented(name: str) -> None:
    """Under each of its names, in the part of the page on its command."""
    part = section(name)
    assert part
    parameters = ALL[name].params
    options = [
        option for p in parameters for option in [*p.opts, *p.secondary_opts] if option.startswith("-")
    ]
    # The short name, with the form that one wants it for, says enough; which server is said once for all commands.
    options = [option for option in options if option not in {"--output", *SERVER}]
    assert [option for option in options if f"`{option}" not in part] == []


def test_the_options_that_say_which_server_are_documented() -> None:
    """In the part on servers."""
    part = PAGE.read_text().split("## Jobs and servers")[1].split("\n## ")[0]
    assert [option for option in SERVER if f"`{option}" not in part] == []


@pytest.mark.parametrize("name", ALL)
def test_no_option_is_documented_that_there_is_not(name: str) -> None:
    """In the first column of a command's table."""
    rows = [line.split("|")[1] for line in section(name).splitlines() if line.startswith("| `-")]
    shown = {word.strip("`,") for row in rows for word in row.split() if word.startswith("`-")}
    known = {option for p in ALL[name].params for option in [*p.opts, *p.secondary_opts]}
    assert shown <= known
