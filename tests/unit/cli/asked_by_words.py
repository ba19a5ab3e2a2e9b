"""The command line against a server: a command in this process, and what it prints."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from served_rest import ServedRest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.server.api.access import Role


def penstock(place: ServedRest, *arguments: object, role: Role = Role.ADMIN, **variables: str) -> Result:
    runner = CliRunner(env={**place.environment(role), **variables})
    result = runner.invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, said: str, code: int = 2) -> None:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr.replace("\n", " ")
