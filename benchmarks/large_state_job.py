"""The job of the benchmark of large states: keeps a long text for each key, which no two keys share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps

__all__ = ["Kept", "Note", "job", "text_of"]


@dataclass
class Note:
    """Something to keep: of a key, with a text of so many characters."""

    key: int
    length: int


@dataclass
class Kept:
    """How long the text of a key is."""

    key: int
    length: int


def text_of(key: int, length: int) -> str:
    """The text of a key, which hardly compresses."""
    return random.Random(key).randbytes(length // 2).hex()


class Keep(ps.ProcessFunction):
    """Keeps the text of each key, and counts its notes."""

    text = ps.ValueState(str)
    notes = ps.ValueState(int)

    def process_record(self, note: Note, ctx: ps.Context) -> Iterator[Kept]:  # noqa: ARG002  # as declared
        """Take the place of the text before."""
        self.text.set(text_of(note.key, note.length))
        self.notes.set((self.notes.get() or 0) + 1)
        yield Kept(note.key, note.length)


job = ps.Job("large")
job.data_stream("notes", schema=Note).key_by("key").process("keep", Keep()).sink_to("kept")
