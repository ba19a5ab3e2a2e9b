"""The check: judge every reading of the job again with the reference fold.

It examines what was actually read and written: the records in the streams, the cuts in the checkpoint, the commands in
the sink. For each room, it compares the commands that the fold expects with those that were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.demo.example import Fold
from penstock.demo.feeds import Evidence, Record

__all__ = ["Checker", "differences"]

# A command, and the micro-batch that wrote it where that is known.
_Command = tuple[int, str]
_UNKNOWN: Final = -1


class Checker:
    """A checker that follows the job batch by batch, or processes all batches at the end.

    A missing command, an extra one, and one with different content (or from another micro-batch, if that is known)
    count as one violation each: a reading that the job and the fold have judged differently.
    """

    def __init__(self, fold: Fold, evidence: Evidence) -> None:
        self._fold = fold
        self._evidence = evidence
        self._expected: dict[int, list[_Command]] = {}
        self._written: dict[int, list[_Command]] = {}
        self._next_batch = 0
        self._counts: dict[int, int] = {}
        self._touched: set[int] = set()
        self.readings = 0
        self.settings = 0
        self.commands = 0

    def follow(self, last_batch: int) -> None:
        """Process the micro-batches up to this one, which must be complete."""
        while self._next_batch <= last_batch:
            self._take(self._next_batch)
            self._next_batch += 1

    def _take(self, batch_id: int) -> None:
        batch = self._evidence.batch(batch_id)
        known = batch_id if self._evidence.tells_batch else _UNKNOWN
        for setting in batch.settings:
            self._fold.take_setting(setting)
        for reading in batch.readings:
            command = self._fold.judge(reading)
            if command is not None:
                self._note(self._expected, command, known)
        self.settings += len(batch.settings)
        self.readings += len(batch.readings)
        for command in self._evidence.commands(batch_id):
            self._note(self._written, command, known)
            self.commands += 1

    def _note(self, commands: dict[int, list[_Command]], command: Record, batch_id: int) -> None:
        sensor = command["sensor_id"]
        commands.setdefault(sensor, []).append((batch_id, command["command"]))
        self._touched.add(sensor)

    def violations(self, *, running: bool = False) -> int:
        """Return the number of readings that were judged differently.

        If commands do not say which batch wrote them, a `running` job may have written commands of micro-batches that
        are not processed here yet. So extra commands at the end do not count.
        """
        ahead = running and not self._evidence.tells_batch
        for sensor in self._touched:
            expected, written = self._expected.get(sensor, []), self._written.get(sensor, [])
            self._counts[sensor] = differences(expected, written[: len(expected)] if ahead else written)
        if not ahead:
            self._touched.clear()
        return sum(self._counts.values())


def differences(expected: Sequence[_Command], written: Sequence[_Command]) -> int:
    """Return the least number of commands to add, remove or replace to turn one sequence into the other.

    This is the Levenshtein distance, by the Wagner-Fischer algorithm, after equal ends are cut off.
    """
    start = 0
    while start < min(len(expected), len(written)) and expected[start] == written[start]:
        start += 1
    end = 0
    while end < min(len(expected), len(written)) - start and expected[-1 - end] == written[-1 - end]:
        end += 1
    left, right = expected[start : len(expected) - end], written[start : len(written) - end]
    row = list(range(len(right) + 1))
    for place, command in enumerate(left, 1):
        above = row
        row = [place]
        for other in range(1, len(right) + 1):
            replaced = above[other - 1] + (command != right[other - 1])
            row.append(min(replaced, above[other] + 1, row[other - 1] + 1))
    return row[-1]
