"""Glossary: each word stands once, and what penstock does not call a thing comes back nowhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_word_stands_once() -> None:
    """In the order of the table, each with what it is."""
    words = [word for row in rows() for word in row[0].split(", ")]
    assert len(words) == len(set(words)) > 40
    assert all(len(row) == 4 and row[1] for row in rows())


def test_what_things_are_not_called_does_not_come_back() -> None:
    """Neither in code nor in documents; what was decided, and the changelog, tell of their time."""
    banned = [word for row in rows() for word in re.findall(r"`([^`]+)`", row[3])]
    assert len(banned) > 10
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    places += [
        path for part in ("src", "tests", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")
    ]
    texts = {path: path.read_text() for path in places}
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in texts.items()
        if path not in (PAGE, ROOT / "CHANGELOG.md", Path(__file__))
        for word in banned
        if word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    ]
    assert found == []
