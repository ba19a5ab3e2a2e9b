"""Commands as senders write them, for the runners of tests."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.control.receipts import FINAL, Receipt
from penstock.testing.batch_outcome import BatchOutcome

__all__ = ["applied", "command_to", "commands", "final_statuses"]


def command_to(step: str | None, kind: str, payload: Any = None, *, key: Any = None, **more: Any) -> bytes:
    """A command to a step, or to the whole job.

    Args:
        step: the id of the step; None for the job.
        kind: the kind of the command.
        payload: its payload.
        key: a key, a list of keys, or "*" for all keys; None for the step.
        more: other fields of the envelope. Without `id` the command has one that says what it is.

    """
    target: dict[str, Any] = {} if step is None else {"step": step}
    if key == "*":
        target["all"] = True
    elif isinstance(key, list):
        target["keys"] = key
    elif key is not None:
        target["key"] = key
    given = {"id": f"{kind}-{key}-{payload}", "kind": kind, "target": target, "payload": payload}
    return msgspec.json.encode(given | more)


def commands(*sent: bytes) -> dict[str, list[tuple[str, list[bytes]]]]:
    """The input of a micro-batch that has these commands alone."""
    return {"commands": [("c", list(sent))]}


def final_statuses(outcome: BatchOutcome) -> dict[str, str]:
    """The final status of each command of a micro-batch, by id."""
    return {receipt.id: receipt.status for receipt in outcome.receipts if receipt.status in FINAL}


def applied(outcome: BatchOutcome) -> Receipt:
    """The receipt of the one command that a micro-batch has applied."""
    (receipt,) = (receipt for receipt in outcome.receipts if receipt.status == "APPLIED")
    return receipt
