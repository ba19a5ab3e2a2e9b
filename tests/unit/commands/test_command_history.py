"""Command histories: a long sequence of commands leaves a checkpoint as small and fast as a short one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import command_history

from penstock.sources import found_files


def test_a_life_of_commands_in_its_small_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only waiting commands, the newest receipts and a short list of files remain; the JSON has the
    documented keys.
    """
    monkeypatch.setattr(found_files, "_WORTHWHILE", 100)
    sizes = command_history.Sizes(commands=400, keys=20, timed=100, receipts_mb=1)
    result = json.loads(json.dumps(command_history.measure(sizes, tmp_path)))
    folder = tmp_path / "checkpoint"
    assert len(list((folder / "commands").iterdir())) <= 1
    assert len((folder / "sources" / "commands.files").read_bytes().splitlines()) <= 1 + 100 + 100
    assert result["files"] <= 6
    assert result["commands"] == 400
    assert result["first_ms"] > 0
    assert result["unknown_ms"] < 200
    command_history.show(result)
