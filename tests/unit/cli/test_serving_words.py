"""What `penstock serve` prints at its start: credentials appear on terminals only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.cli.output import Output
from penstock.cli.serve import _print_address
from penstock.server.server import Started

TOKEN = "canary-token-0123456789"
STARTED = Started("http://127.0.0.1:8081", f"http://127.0.0.1:8081/login?token={TOKEN}", TOKEN, 7, "demo")


@pytest.mark.parametrize("output", Output)
def test_a_log_has_no_token(output: Output, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others may read a file, a pipe or a service's journal; they may not read the home, which is named."""
    _print_address(STARTED, output, tmp_path / "home")
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err
    assert STARTED.url in printed.out
    assert output is Output.json or str(tmp_path / "home" / "server.json") in printed.out


def test_a_terminal_has_the_url_to_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal's user is the owner."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _print_address(STARTED, Output.text, tmp_path)
    assert STARTED.login in capsys.readouterr().out
    _print_address(STARTED, Output.json, tmp_path)
    assert json.loads(capsys.readouterr().out)["token"] == TOKEN
