"""History: the stories of commands, read from the receipts of a job, and waiting for one that is not over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.commands.command_catalog import CommandCatalog
from penstock.commands.receipt_segments import NewLines, receipts_backwards, receipts_in, segment_names
from penstock.control.receipts import FINAL, Receipt

__all__ = ["CommandFilter", "CommandHistory", "NewReceipts", "await_end", "newest_stories", "story_of"]

_POLL_S: Final = 0.05


@dataclass(frozen=True)
class CommandHistory:
    """What became of one command: its receipts in order. All of them come from one micro-batch."""

    receipts: tuple[Receipt, ...]

    @property
    def last(self) -> Receipt:
        """The newest receipt; the final one when the story is over."""
        return self.receipts[-1]


@dataclass(frozen=True)
class CommandFilter:
    """Which stories to show. A command to the whole job belongs to every step that takes its kind, by `entry`."""

    entry: CommandCatalog
    step: str | None = None
    kind: str | None = None

    def __call__(self, story: CommandHistory) -> bool:
        """Whether the story is wanted."""
        last = story.last
        if self.kind is not None and last.kind != self.kind:
            return False
        return self.step is None or self._concerns(last, self.step)

    def _concerns(self, receipt: Receipt, step: str) -> bool:
        if receipt.target == "*":
            known = self.entry.steps.get(step)
            return known is not None and "job" in known.kinds.get(receipt.kind, ())
        return receipt.target.partition("/")[0] == step


def newest_stories(
    checkpoint: Path, wanted: Callable[[CommandHistory], bool], most: int
) -> list[CommandHistory]:
    """The newest stories that are wanted, oldest first. Decodes no more receipts than it needs."""
    found: list[CommandHistory] = []
    for story in _backwards(checkpoint):
        if wanted(story):
            found.append(story)
            if len(found) == most:
                break
    return found[::-1]


def story_of(checkpoint: Path, command_id: str) -> CommandHistory | None:
    """The newest story of an id, or None when there is no receipt of it."""
    for name in reversed(segment_names(checkpoint)):
        told = _stories(receipts_in(checkpoint, name, command_id))
        if told:
            return told[-1]
    return None


def _backwards(checkpoint: Path) -> Iterator[CommandHistory]:
    """All stories, newest first."""
    told: list[Receipt] = []
    for _, receipt in receipts_backwards(checkpoint):
        told.append(receipt)
        if receipt.status == "ACCEPTED":
            yield CommandHistory(tuple(reversed(told)))
            told = []


def _stories(receipts: list[Receipt]) -> list[CommandHistory]:
    """The stories of a command; each begins with the first status."""
    begun: list[list[Receipt]] = []
    for receipt in receipts:
        if receipt.status == "ACCEPTED" or not begun:
            begun.append([])
        begun[-1].append(receipt)
    return [CommandHistory(tuple(story)) for story in begun]


class NewReceipts:
    """The receipts that come after this was made. Each line is read once, and older ones only by `older`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint: Final = checkpoint
        self._new: Final = NewLines(checkpoint)
        self._before: Final = segment_names(checkpoint)

    def read(self, command_id: str) -> list[Receipt]:
        """The receipts of a command that came since the last call."""
        return self._new.read(command_id)

    def older(self, command_id: str) -> Iterator[list[Receipt]]:
        """The receipts of a command in each older segment, backwards; most have none."""
        for name in reversed(self._before):
            yield receipts_in(self._checkpoint, name, command_id)


def await_end(
    new: NewReceipts,
    command_id: str,
    timeout_s: float,
    on_receipt: Callable[[Receipt], None],
    *,
    look_back: bool = False,
) -> Receipt | None:
    """Wait for the final receipt of a command, and tell each on the way; None when the time is over before.

    With `look_back` receipts from before count as well, since an id that was seen before gets no others. They are
    looked through while nothing comes, as there may be many.
    """
    deadline_s = time.monotonic() + timeout_s
    older = new.older(command_id) if look_back else iter(())
    while True:
        final = _told(new.read(command_id), on_receipt)
        next_s = min(time.monotonic() + _POLL_S, deadline_s)
        for receipts in older:
            final = final or _told(receipts, on_receipt)
            if final is not None or time.monotonic() >= next_s:
                break
        now_s = time.monotonic()
        if final is not None or now_s >= deadline_s:
            return final
        time.sleep(max(0.0, next_s - now_s))


def _told(receipts: list[Receipt], on_receipt: Callable[[Receipt], None]) -> Receipt | None:
    """Tell the receipts; the final one, if it is among them."""
    for receipt in receipts:
        on_receipt(receipt)
        if receipt.status in FINAL:
            return receipt
    return None
