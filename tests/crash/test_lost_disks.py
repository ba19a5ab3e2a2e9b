"""A crash that destroys the checkpoint's disk: the job continues from the store, and all output is there once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from crash_trials import Crash, crash, disk_after, record
from disk_tree import ROOT
from life import Life
from reliability import note_result
from run_kinds import KINDS, MAIN

from penstock.checkpoints.checkpoint_sync import CheckpointSync

_STRIDE = 25


def _tried(life: Life, kind: str, stride: int) -> Counter[str]:
    """Lose the disk after each operation that is visible in the store or the outputs, or after some of them."""
    recorded = record(life, dataclasses.replace(KINDS[kind], stored=True))
    places = [0, *(at for at, op in enumerate(recorded.ops, 1) if op.durable or "out/" in op.path)]
    found: Counter[str] = Counter()
    wrong = []
    for at in sorted({*places[::stride], len(recorded.ops)}):
        one = Crash(at)
        tree = disk_after(recorded, one)
        tree.names[ROOT].pop("checkpoint", None)
        outcome = crash(life, recorded, one, tree)
        found[outcome.result] += 1
        if outcome.result != "went on":
            wrong.append(f"{kind}: behind operation {at} ({recorded.ops[at - 1]}): {outcome.why}")
    assert not wrong, "\n".join(wrong)
    return found


def test_a_job_goes_on_without_its_disk(life: Life) -> None:
    """The main kind loses its disk after some operations."""
    assert _tried(life, MAIN, _STRIDE)["went on"] > 3


def test_what_is_not_saved_before_its_output_is_found(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: output does not wait for the store."""
    monkeypatch.setattr(CheckpointSync, "begin", lambda *_: None)
    monkeypatch.setattr(CheckpointSync, "wait", lambda *_: None)
    with pytest.raises(AssertionError, match="behind operation"):
        _tried(life, MAIN, _STRIDE)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [MAIN, "two sinks", "rescaled up"])
def test_a_job_goes_on_without_its_disk_whenever_it_is_lost(life: Life, kind: str) -> None:
    """The disk is lost after every such operation."""
    tried = _tried(life, kind, 1)
    fault = f"disk of a checkpoint on an object store; {kind}"
    note_result("lost disks", fault, sum(tried.values()), 0, "-k whenever_it_is_lost")
