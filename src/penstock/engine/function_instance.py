"""Function instances: a user's function in one slot, with states that follow the current key group."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.engine.step import CONTROL_VERSION, StepCore
from penstock.errors import StateError
from penstock.models.bound_group import BoundGroup
from penstock.models.bound_model import BoundModel
from penstock.models.kept_answers import KeptAnswers
from penstock.operators.watermarks import END_MS
from penstock.state.cursor import Cursor
from penstock.state.group_state import GroupState
from penstock.state.open_values import OpenValues
from penstock.state.shared import SharedStates
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec
from penstock.state.timeline import TIMERS
from penstock.state.unions import BoundUnionListState, Unions

__all__ = ["Clock", "FunctionInstance", "SlotContext"]


class Clock(NamedTuple):
    """The times of a slot: that of the micro-batch, and the largest event time of earlier micro-batches.

    `watermark_ms` is the watermark before the data of this micro-batch, and `after_ms` the watermark after it.
    `has_watermarks` is whether there can be a watermark, and `ends` whether time ends after the data.
    """

    now_ms: int
    event_ms: int | None
    watermark_ms: int | None = None
    after_ms: int | None = None
    has_watermarks: bool = False
    ends: bool = False

    @property
    def after_us(self) -> int:
        """The watermark after the data, which must exist, in microseconds, the unit of timers."""
        assert self.after_ms is not None
        return min(self.after_ms, END_MS // 1000) * 1000


@dataclass(frozen=True)
class SlotContext:
    """The context that a slot provides to a function: its shared states, its unions, the times, its key groups.

    `answers` are those that groups of models and lookups reuse when work is repeated.
    """

    shared: SharedStates
    unions: Unions
    clock: Clock
    key_groups: Sequence[int]
    answers: KeptAnswers


class FunctionInstance:
    """One copy of a step's function for one run in one slot.

    Its states are those of one key group at a time, the one that was entered last; of none while code runs for the
    whole step. If `checks_values`, the states check immediately whether a new value can be stored.
    """

    def __init__(self, core: StepCore, around: SlotContext, *, checks_values: bool) -> None:
        self.core: Final = core
        self.checks_values: Final = checks_values
        self.shared: Final = around.shared
        self.clock: Final = around.clock
        self.answers: Final = around.answers
        clock = self.clock
        self.cursor: Final = Cursor(None, [], None, clock.now_ms, clock.event_ms)
        self.cursor.watermark_ms, self.cursor.has_watermarks = clock.watermark_ms, clock.has_watermarks
        self.function: Final = copy.copy(core.function)
        self.states: dict[str, Any] = {}
        self._entered: GroupState | OpenValues | None = None
        self._no_columns = {
            name: _no_column(_no_key_reason(name, core), spec)
            for name, spec in zip(core.states, core.specs, strict=True)
        }
        for name, declared in core.states.items():
            state = declared.run_time[checks_values](self._no_columns[name], self.cursor)
            state.describe(declared)
            if isinstance(state, BoundUnionListState):
                state.restore(around.unions[name])
            self.states[name] = state
        self.cursor.timers = self.states.get(TIMERS)
        self.models: Final = {
            name: BoundModel(model, around.shared, self.cursor, core.model_place, around.answers.suspensions)
            for name, model in core.models.items()
        }
        for name, group in core.groups.items():
            members = [self.models[model.name] for model in group.models]
            setattr(self.function, name, BoundGroup(group, members, around.answers))
        self.shared_states: Final[dict[str, Any]] = {**around.shared.bind(self.cursor), **self.models}
        for name, state in [*self.states.items(), *self.shared_states.items()]:
            if name not in (CONTROL_VERSION, TIMERS):
                setattr(self.function, name, state)

    def enter(self, group: GroupState | OpenValues) -> None:
        """Move the states to a key group."""
        self._entered = group
        for name, state in self.states.items():
            state.move(group.columns[name])

    def leave(self) -> None:
        """Detach the states from any key group, for code that runs for the whole step."""
        self.cursor.key = None
        if self._entered is not None:
            self._entered = None
            for name, state in self.states.items():
                state.move(self._no_columns[name])

    def refresh(self) -> None:
        """Refresh the states after those of the current group were flushed or preloaded."""
        for state in self.states.values():
            state.refresh()

    # -- control versions --

    def note_version(self, version: int | None) -> None:
        """Note the version of a control record or command for the current key, or for the whole step; None adds one."""
        if not self.core.stamped:
            return
        kept = self.shared_states if self.cursor.key is None else self.states
        state = kept[CONTROL_VERSION]
        state.set((state.get() or 0) + 1 if version is None else version)

    def version(self) -> int:
        """Return the control version of the current key at the current time."""
        of_key = 0 if self.cursor.key is None else self.states[CONTROL_VERSION].get() or 0
        return max(of_key, self.shared_states[CONTROL_VERSION].get() or 0)


class _NoKey(dict[Any, Any]):
    """The values of a state without a key. Any access raises StateError."""

    def __init__(self, refusal: str) -> None:
        super().__init__()
        self._refusal = refusal

    def _refuse(self, *_: Any) -> Any:
        raise StateError(self._refusal)

    __getitem__ = __setitem__ = get = _refuse


class _NoColumn:
    """The column of a state without a key group."""

    def __init__(self, refusal: str, spec: StateSpec) -> None:
        self.spec = spec
        self.values = _NoKey(refusal)
        self.dirty: dict[Any, None] = {}

    def columns(self) -> Any:
        """Raise StateError; see `StateColumn`."""
        return self.values[None]

    def put(self, slots: Iterable[int], values: Any) -> None:  # noqa: ARG002  # as StateColumn
        """Raise StateError; see `StateColumn`."""
        self.values[None] = values


def _no_column(refusal: str, spec: StateSpec) -> StateColumn:
    # Both have the interface that a bound state needs of its column.
    return _NoColumn(refusal, spec)  # type: ignore[return-value]  # see above


def _no_key_reason(name: str, core: StepCore) -> str:
    """Return the error message for access to a state without a key."""
    owners, loop = ("keys", "ctx.keys()") if core.has_key else ("parts", "ctx.parts()")
    return (
        f"The state {name!r} belongs to single {owners}, but this code runs for the whole step. Use it inside a "
        f"loop over {loop}."
    )
