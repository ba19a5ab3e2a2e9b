"""Receipt history: the receipts of commands, read from a job, and waiting for the final one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.commands.command_catalog import CommandCatalog
from penstock.commands.receipt_segments import NewReceipts, receipts_backwards, receipts_in, segment_names
from penstock.control.receipts import FINAL, Receipt

__all__ = [
    "CommandFilter",
    "CommandHistory",
    "await_end",
    "find_history",
    "find_newest_histories",
]

_POLL_S: Final = 0.05


@dataclass(frozen=True)
class CommandHistory:
    """The receipts of one command, in order: those of one micro-batch, and one more if another command undid it."""

    receipts: tuple[Receipt, ...]

    @property
    def last(self) -> Receipt:
        """The newest receipt; the final one if the command has ended."""
        return self.receipts[-1]


@dataclass(frozen=True)
class CommandFilter:
    """Selects commands. One for the whole job belongs to every step that takes its kind, by the catalog."""

    entry: CommandCatalog
    step: str | None = None
    kind: str | None = None

    def __call__(self, history: CommandHistory) -> bool:
        """Return whether the command is selected."""
        last = history.last
        if self.kind is not None and last.kind != self.kind:
            return False
        return self.step is None or self._concerns(last, self.step)

    def _concerns(self, receipt: Receipt, step: str) -> bool:
        if receipt.target == "*":
            known = self.entry.steps.get(step)
            return known is not None and "job" in known.kinds.get(receipt.kind, ())
        return receipt.target.partition("/")[0] == step


def find_newest_histories(
    checkpoint: Path, selected: Callable[[CommandHistory], bool], limit: int
) -> list[CommandHistory]:
    """Find the newest selected commands, oldest first. Decodes no more receipts than it needs."""
    found: list[CommandHistory] = []
    for history in _histories_backwards(checkpoint):
        if selected(history):
            found.append(history)
            if len(found) == limit:
                break
    return found[::-1]


def find_history(checkpoint: Path, command_id: str) -> CommandHistory | None:
    """Find the newest history of an id; None if it has no receipt."""
    later: tuple[Receipt, ...] = ()
    for name in reversed(segment_names(checkpoint)):
        histories = _split(receipts_in(checkpoint, name, command_id))
        if histories:
            later = histories[-1].receipts + later
            if later[0].status == "ACCEPTED":
                break
    return CommandHistory(later) if later else None


def _histories_backwards(checkpoint: Path) -> Iterator[CommandHistory]:
    """Yield all histories, newest first."""
    receipts: list[Receipt] = []
    undone: dict[str, Receipt] = {}
    for _, receipt in receipts_backwards(checkpoint):
        if receipts and receipts[-1].id != receipt.id:
            # The receipt of an undone command stands alone, after those of the command that undid it.
            undone.setdefault(receipts[-1].id, receipts[-1])
            receipts = []
        receipts.append(receipt)
        if receipt.status == "ACCEPTED":
            later = undone.pop(receipt.id, None)
            yield CommandHistory((*reversed(receipts), *(() if later is None else (later,))))
            receipts = []


def _split(receipts: list[Receipt]) -> list[CommandHistory]:
    """Split the receipts of a command into histories; each begins with the first status."""
    begun: list[list[Receipt]] = []
    for receipt in receipts:
        if receipt.status == "ACCEPTED" or not begun:
            begun.append([])
        begun[-1].append(receipt)
    return [CommandHistory(tuple(history)) for history in begun]


def await_end(
    new: NewReceipts,
    command_id: str,
    timeout_s: float,
    on_receipt: Callable[[Receipt], None],
    *,
    look_back: bool = False,
) -> Receipt | None:
    """Wait for the final receipt of a command, and pass on each on the way; None after the timeout.

    With `look_back` earlier receipts count too, since an id that the job has seen gets no new ones. There may be many,
    so they are searched while no new ones arrive.
    """
    deadline_s = time.monotonic() + timeout_s
    older = new.older(command_id) if look_back else iter(())
    while True:
        final = _pass_on(new.read(command_id), on_receipt)
        next_s = min(time.monotonic() + _POLL_S, deadline_s)
        for receipts in older:
            final = final or _pass_on(receipts, on_receipt)
            if final is not None or time.monotonic() >= next_s:
                break
        now_s = time.monotonic()
        if final is not None or now_s >= deadline_s:
            return final
        time.sleep(max(0.0, next_s - now_s))


def _pass_on(receipts: list[Receipt], on_receipt: Callable[[Receipt], None]) -> Receipt | None:
    """Pass on the receipts; return the final one, if it is among them."""
    for receipt in receipts:
        on_receipt(receipt)
        if receipt.status in FINAL:
            return receipt
    return None
