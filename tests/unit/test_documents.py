"""Documents: their lines are short enough to be read and compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_WIDTH = 100


def documents() -> list[Path]:
    """All documents but those that a program writes."""
    folders = [ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("examples/**/*.md")]
    return [path for path in itertools.chain(*folders) if path.parent.name != "chaos"]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a document that are neither code nor tables."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    ") and not line.lstrip().startswith("|"):
            yield number, line


def test_lines_of_prose_have_at_most_100_characters() -> None:
    """Except those that cannot be broken."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in documents()
        for number, line in prose(path.read_text())
        if len(line) > MAX_WIDTH and len(max(line.split(), key=len)) < MAX_WIDTH - 10
    ]
    assert long == []


def test_prose_is_told_from_code_and_tables() -> None:
    """By fences, indentation and bars."""
    text = "One\n```\ncode\n```\n    code\n| table |\nTwo"
    assert [line for _, line in prose(text)] == ["One", "Two"]
