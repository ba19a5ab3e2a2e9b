"""State evolution: the plan for stored states, and its effect on a snapshot and on a checkpoint's own log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from evolving_states import GROUPS, STEP, Outcome, after_of, before_of, planned
from stored_jobs import JobWith, StepWith, StoredJob, captured, job_of, plan_of

import penstock as ps
from penstock.checkpoints.evolution import Change, check_changes, plan_changes
from penstock.errors import StateError, StateMismatchError
from penstock.jobs.restore import declared_state
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries


def test_states_that_are_new_begin_empty_and_those_no_longer_declared_go(tmp_path: Path) -> None:
    """A key that held only removed states is removed as well."""
    before = before_of(
        {"kept": ps.ValueState(int), "gone": ps.ListState(str)},
        {1: {"kept": 1, "gone": ["x"]}, 2: {"gone": ["y"]}, 3: {"kept": 3}},
    )
    job = after_of({"new": ps.MapState(str, int), "kept": ps.ValueState(int)})
    changes = planned(before, job)
    assert changes == [
        Change(STEP, "new", "", "added", "it begins without values"),
        Change(STEP, "kept", "kept", "kept"),
        Change(STEP, "gone", "gone", "dropped", "the step no longer declares it"),
    ]
    check_changes(changes, "there")
    found = Outcome(before, job, tmp_path, changes)
    assert found.rows == {1: {"new": None, "kept": 1}, 3: {"new": None, "kept": 3}}
    assert found.keys == {STEP: 2}


def test_a_state_may_take_the_name_of_another(tmp_path: Path) -> None:
    """The declared name wins; an earlier name counts only where that is not found."""
    before = before_of({"a": ps.ValueState(int), "b": ps.ValueState(int)}, {1: {"a": 1, "b": 2}})
    job = after_of({"b": ps.ValueState(int, renamed_from="a")})
    changes = planned(before, job)
    assert changes == [
        Change(STEP, "b", "b", "kept"),
        Change(STEP, "a", "a", "dropped", "the step no longer declares it"),
    ]
    assert Outcome(before, job, tmp_path, changes).rows == {1: {"b": 2}}


def test_a_keyed_state_is_no_shared_one() -> None:
    """The changed state starts empty, and the old one is removed."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    assert planned(before, after_of({"old": ps.Setting(int)})) == [
        Change(STEP, "old", "old", "dropped", "the step no longer declares it"),
        Change(STEP, "old", "", "added", "it begins without values"),
    ]


def test_keys_of_another_type_are_refused() -> None:
    """This is reported before any other problem of the step."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    job = job_of([StepWith({"old": ps.ValueState(str)}, (str,), [{}, {}])], GROUPS)
    detail = "keys are declared as string, and found as int64"
    assert planned(before, job) == [Change(STEP, "key", "key", "refused", detail)]
    with pytest.raises(StateMismatchError, match="step 0/key: keys are declared as string"):
        check_changes(planned(before, job), "there")


def test_all_that_does_not_fit_is_told_at_once() -> None:
    """So users need not fix one state after another."""
    states = {"a": ps.ValueState(int), "b": ps.ValueState(int), "c": ps.ValueState(int)}
    before = before_of(states, {1: {"a": 7}})
    job = after_of({"a": ps.ValueState(str), "b": ps.ListState(int), "c": ps.ValueState(int)})
    with pytest.raises(StateMismatchError) as caught:
        check_changes(planned(before, job), "there")
    assert "step 0/a: it is declared as string" in str(caught.value)
    assert "; step 0/b: it is declared as ListState, and found as ValueState. " in str(caught.value)


@pytest.mark.parametrize("states", [{"old": ps.ValueState(int), "all": ps.Setting(int)}, {}])
def test_state_of_a_step_that_is_gone_is_left_behind_only_on_demand(
    states: dict[str, Any], tmp_path: Path
) -> None:
    """The option is --allow-non-restored-state; a new step starts empty."""
    steps = [
        StepWith({"old": ps.ValueState(int)}, (int,), [{1: {"old": 7}}, {}]),
        StepWith(states, (int,), [{1: {"old": 7}} if states else {}, {}]),
    ]
    before = StoredJob(JobWith(steps, GROUPS), 2)
    job = after_of({"old": ps.ValueState(int)})
    gone = "the step is no longer in the job"
    refused = [change for change in planned(before, job) if change.step == "step 1"]
    assert refused == [Change("step 1", n, n, "refused", gone) for n in states or [""]]
    with pytest.raises(StateMismatchError) as caught:
        check_changes(planned(before, job), "there")
    assert str(caught.value) == (
        "there holds state of the step 'step 1', which the job no longer has. Give the step its name back, or leave "
        "its state behind with --allow-non-restored-state."
    )
    allowed = planned(before, job, allow_non_restored_state=True)
    assert [c.outcome for c in allowed if c.step == "step 1"] == ["dropped"] * len(refused)
    check_changes(allowed, "there")
    captured(tmp_path / "before", before.state, "arrow", before.read)
    state = declared_state(job)
    snapshot = Snapshot.at(str(tmp_path / "before"))
    assert write_seed(snapshot, state, 3, allowed, tmp_path / "seed") == {STEP: 1}
    more = declared_state(job_of(steps, GROUPS))
    back = plan_changes(more.steps, state.steps)
    assert [c for c in back if c.step == "step 1"] == [
        Change("step 1", name, "", "added", "the step is new") for name in states
    ]


def test_the_log_itself_refuses_what_is_not_a_wider_type() -> None:
    """This guards the worker: no value is ever misread."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    plan = plan_of(after_of({"old": ps.ValueState(str)}), 2)
    (node,) = plan.graph.steps()
    schema = plan.core(node).state_schema
    with pytest.raises(
        StateError, match="'old' is declared as string, and int64 is stored: not every value fits"
    ):
        before.read(node.id, lambda _, entries: [SlotTables(schema, MemoryEntries(entries)) and b""])


def test_a_described_state_is_read_as_the_declared_one() -> None:
    """The checkpoint's description leads to earlier names, as the job's own columns do."""
    state = declared_state(after_of({"new": ps.ValueState(int, renamed_from="old")}))
    plan = plan_of(after_of({"new": ps.ValueState(int, renamed_from="old")}), 1)
    (node,) = plan.graph.steps()
    assert state.steps[STEP].schema.equals(plan.core(node).state_schema, check_metadata=True)
    assert pa.schema(state.steps[STEP].schema).field("new").metadata == {b"renamed_from": b"old"}
