"""What a crash leaves on a disk: after a kill all writes; after a power loss synced writes and some others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from disk_tree import Op, Tree

__all__ = ["POWER_LOSSES", "Loss", "after_kill", "after_power_loss"]

Loss = Literal["nothing else", "names", "halves", "folders", "any"]
"""What is left besides what was synced.

Nothing else; all names, of files without their unsynced bytes; all names, and the first part of the bytes; the names of
some folders and not of others; any of the names in any order, with any of the bytes.
"""

POWER_LOSSES: tuple[Loss, ...] = ("nothing else", "names", "halves", "folders", "any")


def after_kill(base: Tree, ops: Sequence[Op]) -> Tree:
    """Return the disk after a kill that follows some operations: the system completes the process's writes."""
    tree = base.copy()
    for op in ops:
        tree.apply(op)
    return tree


def after_power_loss(base: Tree, ops: Sequence[Op], loss: Loss, seed: int = 0) -> Tree:
    """Return the disk after a power loss that follows some operations.

    Syncing a file saves its bytes, syncing a folder its names; a rename is atomic. Any part of the rest may
    survive.
    """
    chance = random.Random(f"{seed}/{loss}")
    kept = _synced(ops)
    names = [n for n, op in enumerate(ops) if n not in kept and op.kind in ("make", "name", "unname", "move")]
    kept |= _kept_names(ops, names, loss, chance)
    tree = base.copy()
    unsafe: dict[int, list[Op]] = {}
    for n, op in enumerate(ops):
        if op.kind in ("write", "resize") and n not in kept:
            unsafe.setdefault(op.node, []).append(op)
        elif n in kept:
            tree.apply(op)
        elif op.kind == "make":
            tree.be_there(op)
    for changes in unsafe.values():
        for change in _kept_bytes(changes, loss, chance):
            tree.apply(change)
    return tree


def _synced(ops: Sequence[Op]) -> set[int]:
    """Return the positions of the operations that survive a power loss."""
    kept: set[int] = set()
    waiting: dict[int, list[int]] = {}
    for n, op in enumerate(ops):
        if op.durable:
            kept.add(n)
        elif op.kind in ("write", "resize"):
            waiting.setdefault(op.node, []).append(n)
        elif op.kind in ("make", "name", "unname"):
            waiting.setdefault(op.folder, []).append(n)
        elif op.kind == "move":
            for folder in {op.folder, op.to_folder}:
                waiting.setdefault(folder, []).append(n)
        elif op.kind == "sync all":
            kept.update(range(n))
            waiting.clear()
        elif op.kind == "sync":
            kept.update(waiting.pop(op.node, ()))
    return kept


def _kept_names(ops: Sequence[Op], names: Sequence[int], loss: Loss, chance: random.Random) -> set[int]:
    if loss == "nothing else":
        return set()
    if loss in ("names", "halves"):
        return set(names)
    if loss == "folders":
        folders = sorted({ops[n].folder for n in names})
        lucky = {folder for folder in folders if chance.random() < 0.5}
        return {n for n in names if ops[n].folder in lucky}
    return {n for n in names if chance.random() < 0.5}


def _kept_bytes(changes: Sequence[Op], loss: Loss, chance: random.Random) -> Sequence[Op]:
    """Return the changes of one file, in order, up to where the disk got."""
    if loss in ("nothing else", "names"):
        return ()
    count = len(changes) if loss == "folders" else chance.randint(0, len(changes))
    kept = list(changes[:count])
    if loss == "any" and chance.random() < 0.5:
        return kept
    # Eight aligned bytes are in one sector, which a disk writes atomically.
    if kept and kept[-1].kind == "write" and not (len(kept[-1].data) == 8 and kept[-1].at % 8 == 0):
        whole = kept[-1].data
        kept[-1] = kept[-1]._replace(data=whole[: chance.randint(0, len(whole))])
    return kept
