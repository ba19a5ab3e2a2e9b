"""The jobs of the loads that the temperature-control job does not have: copies of records, a slow one, windows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import penstock as ps

__all__ = ["SLOW_S", "copies", "slow_copies", "windows"]

SLOW_S: Final = 0.002
"""What the slow function takes for a record, in seconds."""

IDLENESS: Final = "2s"


@dataclass
class Note:
    """A text with its number."""

    key: int
    number: int
    text: str


@dataclass
class NumberedNote:
    """A note, and how many its key has had."""

    key: int
    number: int
    count: int
    text: str


@dataclass
class Visit:
    """A visit, at a time in milliseconds since 1970."""

    key: int
    at: int


class Copy(ps.ProcessFunction):
    """Counts the notes of each key, and passes them on."""

    seen = ps.ValueState(int)

    def process_record(self, note: Note, ctx: ps.Context) -> Iterator[NumberedNote]:  # noqa: ARG002  # as declared
        """Pass a note on."""
        count = (self.seen.get() or 0) + 1
        self.seen.set(count)
        yield NumberedNote(note.key, note.number, count, note.text)


class SlowCopy(Copy):
    """Takes its time for each."""

    def process_record(self, note: Note, ctx: ps.Context) -> Iterator[NumberedNote]:
        """Pass a note on, later."""
        time.sleep(SLOW_S)
        yield from super().process_record(note, ctx)


copies = ps.Job("copies")
_notes = copies.data_stream("readings", schema=Note)
_notes.key_by("key").process("copy", Copy()).sink_to("heaters")

slow_copies = ps.Job("slow-copies")
_notes = slow_copies.data_stream("readings", schema=Note)
_notes.key_by("key").process("copy", SlowCopy()).sink_to("heaters")

windows = ps.Job("idle-partition")
_visits = windows.data_stream(
    "readings", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s").with_idleness(IDLENESS)
)
_visits.key_by("key").window(ps.TumblingWindows("1s")).count("counts").sink_to("heaters")
