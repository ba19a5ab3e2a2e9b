"""Evolution: decide what happens to each stored state under the job's present declarations, before reading data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from penstock.checkpoints.described_state import DescribedState, DescribedStep
from penstock.errors import StateMismatchError
from penstock.state.widening import misfit

__all__ = ["Change", "Outcome", "check_changes", "plan_changes"]

Outcome: TypeAlias = Literal["kept", "renamed", "widened", "added", "dropped", "refused"]

_ADVICE: Final = (
    "Restore the older job, or declare a new state next to the old one, and let the job take the values over."
)


class Change(msgspec.Struct, frozen=True):
    """What happens to one state. `found` is its stored name, empty if it is not stored."""

    step: str
    state: str
    found: str
    outcome: Outcome
    detail: str = ""


def plan_changes(
    declared: Mapping[str, DescribedStep],
    found: Mapping[str, DescribedStep],
    *,
    allow_non_restored_state: bool = False,
) -> list[Change]:
    """Return what happens to each state, step by step."""
    changes: list[Change] = []
    for name, step in declared.items():
        stored = found.get(name)
        if stored is None:
            changes += [Change(name, state, "", "added", "the step is new") for state in _states(step)]
        else:
            changes += _step_changes(name, step, stored)
    for name, stored in found.items():
        if name not in declared:
            outcome: Outcome = "dropped" if allow_non_restored_state else "refused"
            detail = "the step is no longer in the job"
            changes += [
                Change(name, state, state, outcome, detail) for state in _states(stored) or {"": None}
            ]
    return changes


def check_changes(changes: Sequence[Change], where: str) -> None:
    """Raise StateMismatchError when a state cannot be taken over. It says what is declared and what was found."""
    refused = [change for change in changes if change.outcome == "refused"]
    if not refused:
        return
    gone = sorted({change.step for change in refused if change.detail == "the step is no longer in the job"})
    if gone:
        raise StateMismatchError(
            f"{where} holds state of the step {gone[0]!r}, which the job no longer has. Give the step its name back, "
            "or leave its state behind with --allow-non-restored-state."
        )
    lines = "; ".join(f"{change.step}/{change.state}: {change.detail}" for change in refused)
    raise StateMismatchError(f"The state in {where} does not fit the job: {lines}. {_ADVICE}")


def _states(step: DescribedStep) -> dict[str, DescribedState | None]:
    return {**step.states, **step.shared}


def _step_changes(name: str, declared: DescribedStep, found: DescribedStep) -> Iterator[Change]:
    key, stored_key = (pa.schema(step.schema).field("key").type for step in (declared, found))
    if not key.equals(stored_key):
        detail = f"keys are declared as {key}, and found as {stored_key}"
        yield Change(name, "key", "key", "refused", detail)
        return
    for ours, theirs in ((declared.states, found.states), (declared.shared, found.shared)):
        taken: set[str] = set()
        for state, wanted in ours.items():
            before = wanted.renamed_from
            source = state if state in theirs else before if before in theirs else None
            if source is None:
                yield Change(name, state, "", "added", "it begins without values")
                continue
            taken.add(source)
            yield _change(name, state, source, wanted, theirs[source])
        for state in theirs:
            if state not in taken:
                yield Change(name, state, state, "dropped", "the step no longer declares it")


def _change(step: str, state: str, source: str, wanted: DescribedState, found: DescribedState) -> Change:
    if wanted.kind != found.kind:
        detail = f"it is declared as {wanted.kind}, and found as {found.kind}"
        return Change(step, state, source, "refused", detail)
    ours, theirs = wanted.schema, found.schema
    types = [(ours.field(name).type, theirs.field(name).type) for name in ours.names if name in theirs.names]
    for declared, stored in types:
        reason = misfit(declared, stored)
        if reason:
            detail = f"it is declared as {declared}, and found as {stored}: {reason}"
            return Change(step, state, source, "refused", detail)
    lacking = [path for path in wanted.required if path not in found.required]
    if lacking:
        name = lacking[0].rpartition(".")[2]
        detail = f"the field {name!r} must have a value, and what is stored may have none; make it optional"
        return Change(step, state, source, "refused", detail)
    widened = [f"{stored} becomes {declared}" for declared, stored in types if not declared.equals(stored)]
    if widened:
        return Change(step, state, source, "widened", "; ".join(widened))
    return Change(step, state, source, "renamed" if source != state else "kept")
