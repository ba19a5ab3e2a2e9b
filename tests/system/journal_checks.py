"""Checks of journals for tests that kill jobs: journals are append-only, and each record counts once, in order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from journaled_records import journaled

__all__ = ["JournalCheck", "numbers_by_page"]


class JournalCheck:
    """The journals of some streams of a job. Bytes once seen in a journal must stay the same."""

    def __init__(self, checkpoint: Path, streams: Iterable[str]) -> None:
        self._folders = {stream: checkpoint / "sources" / f"{stream}.journal" for stream in streams}
        self._known: dict[str, list[bytes]] = {stream: [] for stream in self._folders}

    def look(self) -> None:
        """Read all journals, which may grow meanwhile, and compare them with their earlier content."""
        for stream, folder in self._folders.items():
            found = journaled(folder)
            known = self._known[stream]
            assert found[: len(known)] == known, f"the journal of {stream} has changed"
            self._known[stream] = found

    def hits(self, stream: str) -> list[tuple[str, int]]:
        """Return the page and the number of each record of a journal, in order."""
        rows: list[dict[str, Any]] = [json.loads(record) for record in self._known[stream]]
        return [(row["page"], row["number"]) for row in rows]

    def check_counted(self, counted: Iterable[tuple[str, int, int]]) -> None:
        """Compare pages, numbers and counts, in any order, with a model computed from all journals; each has
        its own pages.
        """
        self.look()
        expected = [
            (page, number, count)
            for stream in self._folders
            for page, numbers in numbers_by_page(self.hits(stream)).items()
            for count, number in enumerate(numbers, 1)
        ]
        assert sorted(counted) == sorted(expected)


def numbers_by_page(hits: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    """Return the numbers of each page, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for page, number in hits:
        found[page].append(number)
    return found
