"""Listing state: keys of any type are found by their command-line form."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from stored_jobs import JobWith, StepWith, StoredJob, job_of

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.described_state import read_described
from penstock.errors import CheckpointError, UnknownIdError
from penstock.jobs.restore import declared_state
from penstock.savepoints.state_listing import list_steps
from penstock.savepoints.state_pages import KeysWanted, key_page

KEYS: list[tuple[tuple[Any, ...], Any, str]] = [
    ((int,), -7, "-7"),
    ((str,), "attic", "attic"),
    ((str,), "attic", '"attic"'),
    ((str,), "7", "7"),
    ((str,), "", ""),
    ((str,), "[1, 2]", "[1, 2]"),
    ((str,), "☀ ,", "☀ ,"),
    ((dt.date,), dt.date(2026, 1, 2), "2026-01-02"),
    ((int, str), (1, "b"), '[1, "b"]'),
]


def committed(
    folder: Path, step: StepWith, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any] | None = None
) -> Checkpoint:
    """Return a checkpoint after a micro-batch in which a step stored its states; `declared` are the present
    ones.
    """
    job = StoredJob(JobWith([step], 5), 3)
    now = job_of([StepWith(declared, step.key_type, [{}, {}])], 5) if declared else job.job
    checkpoint = Checkpoint.open(str(folder))
    checkpoint.begin(Lineage("abc", "drawn", 5, 3, ("readings-0", "commands")))
    checkpoint.save("state.json", declared_state(now))
    (folder / "commits").mkdir()
    (folder / "commits" / "0").touch()

    job.read_as_committed(monkeypatch)
    return checkpoint


def values(checkpoint: Checkpoint, step: str, text: str, batch: int | None = None) -> dict[str, Any] | None:
    """Return what a key holds, None for a missing key."""
    wanted = KeysWanted(step=step, key=text, batch=batch)
    found = key_page(checkpoint, read_described(checkpoint.folder), wanted)
    return next((one.values for one in found.items), None)


@pytest.mark.parametrize(("types", "key", "text"), KEYS)
def test_a_key_is_found_by_its_text(
    types: tuple[Any, ...], key: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON serves keys of several fields, and keys whose text looks like something else."""
    states = {"count": ps.ValueState(int), "names": ps.ListState(str), "all": ps.Setting(int)}
    step = StepWith(states, types, [{key: {"count": 5, "names": ["a"]}}, {}], {"all": {None: 1}})
    checkpoint = committed(tmp_path, step, monkeypatch)
    assert values(checkpoint, "step 0", text) == {"count": 5, "names": ["a"]}
    assert values(checkpoint, "step 0", other(types), 0) is None


def other(types: tuple[Any, ...]) -> str:
    return {(int,): "1", (str,): "b", (dt.date,): "1999-01-02", (int, str): '[1, "c"]'}[types]


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ((int,), "attic"),
        ((int,), "1.5"),
        ((int,), "null"),
        ((int,), str(2**70)),
        ((dt.date,), "noon"),
        ((int, str), "1"),
        ((int, str), '["b", 1]'),
        ((int, str), "[1]"),
    ],
)
def test_what_is_no_key_is_refused(
    types: tuple[Any, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the key's type."""
    step = StepWith({"count": ps.ValueState(int)}, types, [{}, {}])
    checkpoint = committed(tmp_path, step, monkeypatch)
    with pytest.raises(CheckpointError, match="is not a key of the step, whose keys are"):
        values(checkpoint, "step 0", text)
    with pytest.raises(UnknownIdError, match="has no step 'attic'; its steps are step 0"):
        values(checkpoint, "attic", text)


def test_states_are_shown_as_they_are_declared_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log still has the earlier names, and further states."""
    states = {"old": ps.ValueState(int), "gone": ps.ValueState(int)}
    step = StepWith(states, (int,), [{1: {"old": 5, "gone": 6}}, {}])
    now = {"new": ps.ValueState(int, renamed_from="old"), "more": ps.ValueState(str)}
    checkpoint = committed(tmp_path, step, monkeypatch, now)
    assert values(checkpoint, "step 0", "1") == {"new": 5, "more": None}


def test_hidden_states_and_steps_without_states_are_listed(tmp_path: Path) -> None:
    """A step without content is listed, but penstock's internal state is not."""
    steps = [
        StepWith({}, (str,), [{}, {}]),
        StepWith({"rules": ps.BroadcastState(str, int)}, (int, str), [{}, {}]),
    ]
    state = declared_state(job_of(steps, 5))
    assert list_steps(tmp_path, state) == [
        {"step": "step 0", "keys": 0, "key": "string", "states": []},
        {
            "step": "step 1",
            "keys": 0,
            "key": "struct<key_0: int64 not null, key_1: string not null>",
            "states": [{"name": "rules", "kind": "BroadcastState", "type": "int64"}],
        },
    ]
