"""The guide to snapshots runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snapshot_support import write_snapshot

from penstock.snapshots.snapshot_reader import verify

GUIDE = Path(__file__).parents[3] / "docs" / "snapshots.md"


def test_the_examples_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder with two dumps, of which one was edited."""
    monkeypatch.chdir(tmp_path)
    for name in ("before", "edited"):
        write_snapshot(name)
    part = tmp_path / "edited" / "thermostat" / "setting" / "part-00000.csv"
    part.write_text(part.read_text().replace("room-02,20.5", "room-02,19"))
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(code, {})
    assert "changed {'key': 'room-02'}" in capsys.readouterr().out
    assert verify("new").sound
