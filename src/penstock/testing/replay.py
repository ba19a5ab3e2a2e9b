"""Replay: check that a micro-batch repeated after a crash has the same result, or report the first difference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

__all__ = ["ReplayMismatchError", "check_replay"]

_ADVICE: Final = (
    "A function may only depend on its states, its records and ctx: attributes are lost in a crash, and clocks, random "
    "numbers and the order of sets differ the next time."
)


class ReplayMismatchError(PenstockError):
    """A micro-batch had a different result when it was repeated, so a crash would change the output of the job."""

    fault = "user"


def check_replay(
    first: BatchOutcome, again: BatchOutcome, stored: BatchRunner, stored_again: BatchRunner
) -> None:
    """Raise ReplayMismatchError unless a repeated micro-batch has the same sink outputs, receipts and state."""
    difference = next(_differences(first, again, stored, stored_again), None)
    if difference is not None:
        raise ReplayMismatchError(
            f"Micro-batch {first.number} had a different result when it was repeated after a crash: {difference} "
            f"{_ADVICE}"
        )


def _differences(
    first: BatchOutcome, again: BatchOutcome, stored: BatchRunner, stored_again: BatchRunner
) -> Iterator[str]:
    for sink in first.sink_names:
        yield from _first_difference(f"the sink {sink!r} got", first.output(sink), again.output(sink))
    yield from _first_difference("a receipt is", first.receipts, again.receipts)
    if first.data != again.data:
        yield "the sinks got the same records, in different bytes."
    steps = {node.id: node.step for node in stored.plan.graph.steps()}
    for node, step in steps.items():
        one, other = (
            {slot: entries for (owner, slot), entries in runner.states.items() if owner == node}
            for runner in (stored, stored_again)
        )
        if one != other:
            yield f"the state of the step {step!r} differs, though nothing that left the job does."


def _first_difference(what: str, first: Sequence[Any], again: Sequence[Any]) -> Iterator[str]:
    missing: Final = object()
    for number, (one, other) in enumerate(itertools.zip_longest(first, again, fillvalue=missing)):
        # NaN is not equal to itself, and its text is.
        if one != other and repr(one) != repr(other):
            shown = ["nothing" if record is missing else repr(record) for record in (one, other)]
            yield f"{what} {shown[1]} as number {number + 1}, and {shown[0]} before."
