"""The job of the benchmark of large states: keeps a long, unique text for each key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

__all__ = ["Kept", "Note", "job", "text_of"]


@dataclass
class Note:
    """A note for a key, whose text has a number of characters."""

    key: int
    length: int


@dataclass
class Kept:
    """The length of the text of a key."""

    key: int
    length: int


def text_of(key: int, length: int) -> str:
    """Return the text of a key, which hardly compresses."""
    return random.Random(key).randbytes(length // 2).hex()


class Keep(ps.ProcessFunction):
    """Keeps the text of each key, and counts its notes."""

    text = ps.ValueState(str)
    notes = ps.ValueState(int)

    def process_record(self, note: Note, ctx: ps.Context) -> Iterator[Kept]:  # noqa: ARG002  # as declared
        """Replace the previous text."""
        self.text.set(text_of(note.key, note.length))
        self.notes.set((self.notes.get() or 0) + 1)
        yield Kept(note.key, note.length)


job = ps.Job("large")
job.data_stream("notes", schema=Note).key_by("key").process("keep", Keep()).sink_to("kept")
