"""Function instances: a user's function at work in one slot, with states that follow the current key group."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.engine.step import CONTROL_VERSION, StepCore
from penstock.errors import StateError
from penstock.operators.watermarks import END_MS
from penstock.state.cursor import Cursor
from penstock.state.group_state import GroupState
from penstock.state.shared import SharedStates
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec
from penstock.state.timeline import TIMERS
from penstock.state.unions import BoundUnionListState, Unions
from penstock.state.values import BoundState, BoundValueState

__all__ = ["Clock", "FunctionInstance", "SlotContext"]


class Clock(NamedTuple):
    """What time it is for a slot: that of the micro-batch, and the largest event time of earlier ones.

    `watermark_ms` is the watermark of the earlier ones, and `after_ms` the one behind the data of this one;
    `has_watermarks` tells whether there ever is one, and `ends` that time ends behind the data.
    """

    now_ms: int
    event_ms: int | None
    watermark_ms: int | None = None
    after_ms: int | None = None
    has_watermarks: bool = False
    ends: bool = False

    @property
    def after_us(self) -> int:
        """The watermark behind the data, when there is one, in microseconds, as timers have their times."""
        assert self.after_ms is not None
        return min(self.after_ms, END_MS // 1000) * 1000


@dataclass(frozen=True)
class SlotContext:
    """What a slot has for a function at work: its shared states, its unions, and the time."""

    shared: SharedStates
    unions: Unions
    clock: Clock


class FunctionInstance:
    """One copy of a step's function for one run in one slot.

    Its states speak of one key group at a time, the one that was entered last; where code runs for the whole step, of
    none. `checks_values` tells that they try at once whether what they are set to can be stored.
    """

    def __init__(self, core: StepCore, around: SlotContext, kind: type[BoundValueState]) -> None:
        self.core: Final = core
        self.checks_values: Final = kind is not BoundValueState
        self.shared: Final = around.shared
        self.clock: Final = around.clock
        clock = self.clock
        self.cursor: Final = Cursor(None, [], None, clock.now_ms, clock.event_ms)
        self.cursor.watermark_ms, self.cursor.has_watermarks = clock.watermark_ms, clock.has_watermarks
        self.function: Final = copy.copy(core.function)
        self.states: dict[str, Any] = {}
        self._entered: GroupState | None = None
        self._nowhere = {
            name: _no_column(_nowhere(name, core), spec)
            for name, spec in zip(core.states, core.specs, strict=True)
        }
        for name, declared in core.states.items():
            state: BoundState = declared.bound(kind)(self._nowhere[name], self.cursor)
            state.describe(declared)
            if isinstance(state, BoundUnionListState):
                state.restore(around.unions[name])
            self.states[name] = state
        self.cursor.timers = self.states.get(TIMERS)
        self.shared_states: Final[dict[str, Any]] = dict(around.shared.bind(self.cursor))
        for name, state in [*self.states.items(), *self.shared_states.items()]:
            if name not in (CONTROL_VERSION, TIMERS):
                setattr(self.function, name, state)

    def enter(self, group: GroupState) -> None:
        """From now on the states speak of the keys of a group."""
        self._entered = group
        for name, state in self.states.items():
            state.move(group.columns[name])

    def leave(self) -> None:
        """From now on the code runs for the whole step again."""
        self.cursor.key = None
        if self._entered is not None:
            self._entered = None
            for name, state in self.states.items():
                state.move(self._nowhere[name])

    def refresh(self) -> None:
        """The states of the current group were flushed or preloaded; look at them anew."""
        for state in self.states.values():
            state.refresh()

    # -- control versions --

    def note_version(self, version: int | None) -> None:
        """A control took effect for the current key, or for the whole step; without a version it is one more."""
        if not self.core.stamped:
            return
        kept = self.shared_states if self.cursor.key is None else self.states
        state = kept[CONTROL_VERSION]
        state.set((state.get() or 0) + 1 if version is None else version)

    def version(self) -> int:
        """The control version in force for the current key at the current time."""
        of_key = 0 if self.cursor.key is None else self.states[CONTROL_VERSION].get() or 0
        return max(of_key, self.shared_states[CONTROL_VERSION].get() or 0)


class _NoKey(dict[Any, Any]):
    """The values of a state where there is no key."""

    def __init__(self, refusal: str) -> None:
        super().__init__()
        self._refusal = refusal

    def _refuse(self, *_: Any) -> Any:
        raise StateError(self._refusal)

    __getitem__ = __setitem__ = get = _refuse


class _NoColumn:
    """The column of a state where there is no key group."""

    def __init__(self, refusal: str, spec: StateSpec) -> None:
        self.spec = spec
        self.values = _NoKey(refusal)
        self.dirty: dict[Any, None] = {}

    def columns(self) -> Any:
        """As `StateColumn`."""
        return self.values[None]

    def put(self, slots: Iterable[int], values: Any) -> None:  # noqa: ARG002  # as StateColumn
        """As `StateColumn`."""
        self.values[None] = values


def _no_column(refusal: str, spec: StateSpec) -> StateColumn:
    # The two agree in what a state at work asks of its column.
    return _NoColumn(refusal, spec)  # type: ignore[return-value]


def _nowhere(name: str, core: StepCore) -> str:
    """What is said of a state where there is no key."""
    owners, loop = ("keys", "ctx.keys()") if core.has_key else ("parts", "ctx.parts()")
    return (
        f"The state {name!r} belongs to single {owners}, and this code runs for the whole step. Use it inside of a "
        f"loop over {loop}."
    )
