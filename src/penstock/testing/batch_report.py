"""Batch report: a readable description of a micro-batch, shown when a test fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.testing.batch_outcome import BatchOutcome

__all__ = ["batch_report"]

# A report of thousands of records would be unreadable; a test that sends them inspects them itself.
_MAX_SHOWN: Final = 50


def batch_report(inputs: Mapping[str, Sequence[tuple[str, Sequence[Any]]]], outcome: BatchOutcome) -> str:
    """Return a text that lists the inputs, outputs, receipts and dead letters of a micro-batch."""
    came = {name: [record for _, records in runs for record in records] for name, runs in inputs.items()}
    receipts = [
        f"{one.id} {one.status} {one.kind} {one.target}{f': {one.reason}' if one.reason else ''}"
        for one in outcome.receipts
    ]
    letters = [
        f"{one.stream}{f' at {one.step}' if one.step else ''}: {one.reason} ({one.raw!r})"
        for one in outcome.dead_letters
    ]
    lines = [f"Micro-batch {outcome.number}"]
    for name, records in came.items():
        lines += _section(f"in, {name}", map(repr, records))
    for name, records in outcome.outputs.items():
        lines += _section(f"out, {name}", map(repr, records))
    lines += _section("receipts", receipts)
    lines += _section("dead letters", letters)
    return "\n".join(lines)


def _section(title: str, items: Any) -> Iterator[str]:
    found = list(items)
    if found:
        yield f"  {title}:"
        yield from (f"    {item}" for item in found[:_MAX_SHOWN])
    if len(found) > _MAX_SHOWN:
        yield f"    ... and {len(found) - _MAX_SHOWN} more"
