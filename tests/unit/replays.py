"""Replays: a micro-batch is repeated by workers that have kept nothing, in another order, and comes to the same."""

from __future__ import annotations

from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner, Inputs

__all__ = ["run_and_replay"]


def run_and_replay(runner: BatchRunner, inputs: Inputs, *, seed: int = 0, ends: bool = False) -> BatchOutcome:
    """Run a micro-batch, and check that a replay has the same output bytes, receipts and stored state."""
    again = runner.copy()
    outcome = runner.run(inputs, seed=seed, ends=ends)
    replayed = again.run(inputs, seed=seed + 1, ends=ends)
    assert (replayed.data, replayed.receipts) == (outcome.data, outcome.receipts)
    assert again.states == runner.states
    return outcome
