"""History: the stories of commands, read from the receipts of a job, and waiting for one that is not over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.control.receipts import FINAL, Receipt
from penstock.jobs.control import ControlEntry
from penstock.jobs.receipts import kept_receipts, receipt_files, receipts_in

__all__ = ["NewReceipts", "Story", "Wanted", "await_end", "newest_stories", "story_of"]

_POLL_S: Final = 0.05
_LIST_AGAIN_S: Final = 1.0


@dataclass(frozen=True)
class Story:
    """What became of one command: its receipts in order. All of them come from one micro-batch."""

    receipts: tuple[Receipt, ...]

    @property
    def last(self) -> Receipt:
        """The newest receipt; the final one when the story is over."""
        return self.receipts[-1]


@dataclass(frozen=True)
class Wanted:
    """Which stories to show. A command to the whole job belongs to every step that takes its kind, by `entry`."""

    entry: ControlEntry
    step: str | None = None
    kind: str | None = None

    def __call__(self, story: Story) -> bool:
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


def newest_stories(checkpoint: Path, wanted: Callable[[Story], bool], most: int) -> list[Story]:
    """The newest stories that are wanted, oldest first. Reads no more files than it needs."""
    found: list[Story] = []
    for story in _backwards(checkpoint):
        if wanted(story):
            found.append(story)
            if len(found) == most:
                break
    return found[::-1]


def story_of(checkpoint: Path, command_id: str) -> Story | None:
    """The newest story of an id, or None when there is no receipt of it."""
    return next(_backwards(checkpoint, command_id), None)


def _backwards(checkpoint: Path, command_id: str | None = None) -> Iterator[Story]:
    for name in reversed(receipt_files(checkpoint)):
        yield from reversed(_stories(receipts_in(checkpoint, name, command_id)))


def _stories(receipts: list[Receipt]) -> list[Story]:
    """The stories in one micro-batch; each begins with the first status."""
    begun: list[list[Receipt]] = []
    for receipt in receipts:
        if receipt.status == "ACCEPTED" or not begun:
            begun.append([])
        begun[-1].append(receipt)
    return [Story(tuple(story)) for story in begun]


class NewReceipts:
    """The receipts that come after this was made. Each file is read once, and older ones only by `older`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._folder = kept_receipts(checkpoint)
        self._changed_ns = self._settled_ns = -1
        self._list_at_s = 0.0
        self._before = receipt_files(checkpoint)
        self._newest = max(self._before, default="")

    def read(self, command_id: str) -> list[Receipt]:
        """The receipts of a command that came since the last call."""
        if not self._may_have_more():
            return []
        names = receipt_files(self._checkpoint, self._newest)
        self._newest = max(names, default=self._newest)
        return [receipt for name in names for receipt in receipts_in(self._checkpoint, name, command_id)]

    def older(self, command_id: str) -> Iterator[list[Receipt]]:
        """The receipts of a command in each older file, backwards; most have none."""
        for name in reversed(self._before):
            yield receipts_in(self._checkpoint, name, command_id)

    def _may_have_more(self) -> bool:
        """Whether the folder changed. It may be large, so that it is not listed without need."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        now_s = time.monotonic()
        if changed_ns == self._settled_ns and now_s < self._list_at_s:
            return False
        # Two files within one tick of the file system's clock leave the same time, so one more look follows a change.
        self._settled_ns = changed_ns if changed_ns == self._changed_ns else -1
        self._changed_ns = changed_ns
        self._list_at_s = now_s + _LIST_AGAIN_S
        return True


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
