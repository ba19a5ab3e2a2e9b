"""A feed of readings in files, for a job that counts the readings of each sensor."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from steady_feed import feed_steadily

__all__ = ["COUNTING_JOB", "SENSORS", "FileFeed"]

COUNTING_JOB = Path(__file__).parents[1] / "integration" / "recorded_job.py"
SENSORS = 20


class FileFeed:
    """Each file has one reading of each sensor."""

    pause_s = 0.2

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "readings"
        self._folder.mkdir()
        self.files = 0

    @property
    def binding(self) -> str:
        return f"jsonl:{self._folder}"

    @property
    def expected(self) -> Counter[tuple[int, int]]:
        """Return the expected output: each sensor with each of its counts, once."""
        return Counter((sensor, count) for sensor in range(SENSORS) for count in range(1, self.files + 1))

    @property
    def next_lines(self) -> str:
        """Return the lines of the next file: a reading of each sensor."""
        lines = [json.dumps({"sensor": sensor, "number": self.files}) for sensor in range(SENSORS)]
        return "".join(line + "\n" for line in lines)

    def write(self) -> None:
        new = self._folder / f".{self.files:05}.tmp"
        new.write_text(self.next_lines)
        new.rename(self._folder / f"{self.files:05}.jsonl")
        self.files += 1

    def feeding(self) -> AbstractContextManager[None]:
        """Write a file at intervals while the block runs."""
        return feed_steadily(self.write, self.pause_s)
