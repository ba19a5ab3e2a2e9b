"""Runs the command line in this process, and captures its output."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from penstock.cli import app

__all__ = ["refused", "told", "typed"]


def typed(*arguments: object, **environment: str) -> Result:
    """Run a command that ends, with success or a refusal."""
    result = CliRunner(env=environment).invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(result: Result) -> Any:
    """Return the JSON output of a command."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, said: str, code: int = 2) -> None:
    """Check that a command was refused, and return its error."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr.replace("\n", " ")
