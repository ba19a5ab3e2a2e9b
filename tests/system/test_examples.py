"""The examples as their readers start them: each runs to its end and tells its story."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def story(example: str) -> str:
    """What an example prints, as plain text."""
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example / "run.py")],
        capture_output=True,
        text=True,
        timeout=240,
        # A terminal's colours and width would be inherited otherwise.
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def cells(out: str, first: str) -> list[str]:
    """The cells of the table row that begins with a text."""
    (row,) = (line for line in out.splitlines() if line.startswith(f"│ {first} "))
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_rules_change_while_payments_come() -> None:
    """The right rules alert in each hour, in the right version, and each command has the receipt it should have."""
    out = story("dynamic_rules")
    forms = {
        "card-testing": ["-", r"\d+ v1", r"\d+ v1", "-"],
        "foreign-cards": [r"\d+ v1", r"\d+ v1", "-", r"\d+ v1"],
        "spree": [r"\d+ v1", r"\d+ v2", r"\d+ v2", r"\d+ v2"],
    }
    for rule, wanted in forms.items():
        found = cells(out, rule)[1:]
        assert all(re.fullmatch(form, cell) for form, cell in zip(wanted, found, strict=True)), (rule, found)
    statuses = {
        "add-rule-1": "APPLIED",
        "update-rule-1": "APPLIED",
        "pause-rule-1": "APPLIED",
        "add-rule-2": "DEGRADED",
        "update-rule-2": "REJECTED",
        "resume-rule-1": "APPLIED",
        "clear-rule-1": "APPLIED",
        "list-rules-1": "APPLIED",
    }
    assert {name: cells(out, name)[1] for name in statuses} == statuses
    assert cells(out, "clear-rule-1")[2] == "60"
    assert "control 2 ┃ control 4 ┃ control 5 ┃ control 9" in out
    listed = out.partition("replies to list-rules:")[2].split("One job")[0].split("\n")
    assert [line.split(":")[0].strip() for line in listed if line.strip()] == ["spree v2", "foreign-cards v1"]


def test_flags_hold_from_the_time_they_say() -> None:
    """Views come in no order, yet the hours are told apart: 10 %, 50 % from noon, all from 16:00; killed, and back."""
    out = story("feature_flags")
    for hour in range(8, 20):
        found = [re.fullmatch(r"█* *(\d+)% v(\d)", cell) for cell in cells(out, f"{hour:02}:00")[1:]]
        assert all(found)
        shares, versions = zip(*((int(one[1]), one[2]) for one in found if one), strict=True)
        assert 3 <= shares[0] <= 20
        low, high = (3, 20) if hour < 12 else (40, 60) if hour < 16 else (100, 100)
        assert low <= shares[1] <= high
        assert shares[2] == (0 if 10 <= hour < 14 else 100)
        second = "2" if hour < 12 else "3" if hour < 16 else "4"
        third = "4" if hour < 10 else "5" if hour < 14 else "6"
        assert versions == ("2", second, third)
    assert cells(out, "kill-1")[3] == cells(out, "kill-2")[3] == "APPLIED"
    assert "lost the new checkout while its share grew: 0." in out
