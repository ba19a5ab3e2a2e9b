"""The command line in this process, and what it prints."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from penstock.cli import app

__all__ = ["refused", "told", "typed"]


def typed(*arguments: object, **environment: str) -> Result:
    """A command that comes to an end, be it a refusal."""
    result = CliRunner(env=environment).invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(result: Result) -> Any:
    """The JSON that a command has printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, said: str, code: int = 2) -> None:
    """A command has refused, and says why in an error."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr.replace("\n", " ")
