"""The core of a step: takes records, commands and stored state, and returns emitted records and new state.

A step is independent of micro-batches and of its caller: it is a pure function of its arguments, if the user's function
is. In each run, commands and broadcast control records come first. Then each key group processes its keyed control
records, and after these its data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.engine.emission_causes import Causes
from penstock.joins.join_step import DUE, JoinStep, earliest_by_clock, earliest_by_event
from penstock.joins.table_lookup import TableLookup
from penstock.models.bound_model import ModelPlace
from penstock.models.group import ModelGroup
from penstock.models.library_places import LibraryPlace
from penstock.models.model import Model
from penstock.operators.functions import ProcessFunction, is_vectorised
from penstock.operators.handlers import declared_handlers
from penstock.operators.keys import KeySelector
from penstock.operators.record_blocks import KEY, Block, DeadLetter
from penstock.operators.window_step import WindowStep
from penstock.records.types import RecordType
from penstock.state.group_state import state_schema
from penstock.state.history import TemporalState
from penstock.state.open_values import can_stay_open
from penstock.state.plain_values import PlainValues
from penstock.state.shared import Setting, declared_shared
from penstock.state.timeline import TIMERS, TimerColumn, earliest_timers
from penstock.state.timers import TimerState
from penstock.state.transient import Kept
from penstock.state.values import KeyedState, ValueState
from penstock.tables.table_step import TableStep
from penstock.windows.window_state import WINDOWS, earliest_window_timers

__all__ = [
    "CONTROL_VERSION",
    "MAIN",
    "TABLE_WORK",
    "Emission",
    "StepCore",
    "StepInput",
    "StepResult",
]

MAIN: Final = ""
TABLE_WORK: Final = "@tables"
"""The stream that the dead letters of groups name, which no record has brought."""
# The hidden state with control versions; users' states cannot begin with two underscores.
CONTROL_VERSION: Final = "__control_version"


@dataclass(frozen=True)
class StepInput:
    """One input of a step: its record type, its key, and whether it is a control stream.

    A broadcast control stream has no key. `time` is the field with the event time of data (or `INGESTION_TIME`, or
    `EVENT_TIME`), or with the time from which a control record is effective; `version` is the field with the version of
    a control record.
    """

    record_type: RecordType
    key: KeySelector | None
    is_control: bool
    time: str | None = None
    version: str | None = None

    @functools.cached_property
    def _key_field(self) -> str | None:
        """The field whose Python values are those of the key; None without such a field."""
        name = None if self.key is None or self.key.computed else self.key.field
        is_same = name is not None and self.record_type.field(name).python_type in (int, str, bytes)
        return name if is_same else None

    def keys(self, block: Block) -> pa.Array:
        """Return the key of each record of a block."""
        column = block.column(KEY)
        if column is not None:
            return column
        assert self.key is not None
        return self.key.column(block.batch)

    def columns(self, batch: pa.RecordBatch, keys: list[Any]) -> list[list[Any]]:
        """Return the fields of records as user code sees them. `keys` are the keys of the records."""
        return [
            keys if field.name == self._key_field else field.to_python(batch.column(field.name))
            for field in self.record_type.fields
        ]


@dataclass(frozen=True)
class Emission:
    """Records that a step emitted to one output ("" is the main one), with the keys they were emitted under.

    `times` are their event times in milliseconds since 1970, if a later step uses them, and `causes` the records that
    caused them, if a sink needs them.
    """

    output: str
    batch: pa.RecordBatch
    keys: pa.Array
    times: pa.Array | None = None
    causes: Causes | None = None


@dataclass
class StepResult:
    """The result of a run of a step. `changes` are the rows to change in a key group's table, if any.

    `newest_ms` is the largest event time so far, if values expire by event time. `counts` has the number of records of
    a step with windows by outcome: in windows, late, or without a window.
    """

    emissions: list[Emission] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    changes: pa.RecordBatch | None = None
    newest_ms: int | None = None
    counts: Counter[str] = field(default_factory=Counter)


class StepCore:
    """A step: a process function, its inputs (control first, data last) and its outputs. A join has two data inputs.

    In a step without a key, the place of its data determines a part, and the keys are those of the parts.

    If `stamped`, the main output has an additional field, the control version under which each record was made. The
    outputs in `timed` carry the event times of their records, those in `caused` their causes. If `only_after`, nobody
    reads the rows before updates of its table. `library` has the contents of models; with `watches_models` a call of
    one that hangs ends the process.
    """

    def __init__(
        self,
        step: str,
        function: ProcessFunction,
        inputs: Sequence[StepInput],
        outputs: Mapping[str, RecordType],
        *,
        stamped: bool = False,
        timed: Collection[str] = (),
        caused: Collection[str] = (),
        only_after: bool = False,
        library: LibraryPlace | None = None,
        watches_models: bool = False,
    ) -> None:
        self.step = step
        self.function = function
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = outputs
        self.stamped = stamped
        self.timed: Final = frozenset(timed)
        self.caused: Final = frozenset(caused)
        self.only_after: Final = only_after
        data = self.inputs[-1]
        self.data_inputs: Final = frozenset(n for n, one in enumerate(self.inputs) if not one.is_control)
        assert data.key is not None
        self.key_type: Final = data.key.key_type
        self.has_key: Final = not data.key.by_place
        self.states: Final[dict[str, KeyedState]] = find_declarations(type(function), KeyedState)
        self.shared: Final = declared_shared(type(function))
        self.models: Final = {name: one for name, one in self.shared.items() if isinstance(one, Model)}
        self.groups: Final = find_declarations(type(function), ModelGroup)
        self.model_place: Final = ModelPlace(library, self.key_type, step, watches_models)
        if stamped:
            # The version is a hidden state of each key and of the step, so it is stored like others.
            self.states[CONTROL_VERSION] = TemporalState(int)
            self.states[CONTROL_VERSION].name = CONTROL_VERSION
            self.shared[CONTROL_VERSION] = Setting(int, 0)
            self.shared[CONTROL_VERSION].name = CONTROL_VERSION
        self.windows: Final = function if isinstance(function, WindowStep) else None
        self.join: Final = function if isinstance(function, JoinStep) else None
        self.table: Final = function if isinstance(function, TableStep) else None
        self.lookup: Final = function if isinstance(function, TableLookup) else None
        self.timers: Final = self._declare_timers()
        self.specs: Final = [
            dataclasses.replace(state.spec(), renamed_from=state.renamed_from)
            for state in self.states.values()
        ]
        self.state_schema: Final = state_schema(self.key_type, self.specs)
        self.handlers: Final = declared_handlers(type(function))
        self.vectorised: Final = is_vectorised(function)
        self.states_stay_open: Final = self._states_stay_open()
        self.has_history: Final = any(isinstance(state, TemporalState) for state in self.states.values())
        self.expires_by_event: Final = any(spec.ttl and spec.ttl.time == "event" for spec in self.specs)
        self.judges_by_time: Final = self.has_history or self.expires_by_event
        # Outlives this core in its worker, and is shared by all copies of the function.
        self._kept: Final = Kept.of(function)
        self._cleared = 0

    @property
    def takes_single_records(self) -> bool:
        """Whether the user's function is called for each record, not for columns, windows, pairs or groups."""
        others = (self.windows, self.join, self.table, self.lookup)
        return not self.vectorised and all(other is None for other in others)

    def _states_stay_open(self) -> bool:
        """Return whether the states may be Python objects from round to round; timers are found in rows."""
        return (
            not self.vectorised
            and self.windows is None
            and self.table is None
            and self.timers is None
            and not pa.types.is_floating(self.key_type)
            and all(type(state) is ValueState for state in self.states.values())
            and can_stay_open(self.specs)
        )

    def _declare_timers(self) -> TimerColumn | None:
        """Declare the hidden state for timers, and return its column; None without timers."""
        if self.windows is not None:
            self.states[WINDOWS] = self.windows.state()
            return TimerColumn(WINDOWS, earliest_window_timers)
        if self.join is not None:
            self.states.update(self.join.states())
            return TimerColumn(DUE, earliest_by_clock if self.join.is_by_clock else earliest_by_event)
        if self.table is not None and self.table.waiting_state is not None:
            return TimerColumn(self.table.waiting_state, self.table.earliest)
        if type(self.function).on_timer is ProcessFunction.on_timer:
            return None
        self.states[TIMERS] = TimerState()
        return TimerColumn(TIMERS, earliest_timers)

    @functools.cached_property
    def plain_values(self) -> PlainValues:
        """The fast reader of most values that commands set. Created on demand: most micro-batches have no commands."""
        return PlainValues(self.states)

    def expiry_clocks(self, now_ms: int, event_ms: int | None) -> dict[str, int]:
        """Return the current time for each state with a TTL, in the TTL's time domain."""
        clocks = {}
        for spec in self.specs:
            if spec.ttl is not None:
                clock_ms = now_ms if spec.ttl.time == "processing" else event_ms
                if clock_ms is not None:
                    clocks[spec.name] = clock_ms
        return clocks

    def clear_cache(self, generation: int) -> None:
        """Clear the function's cache in this worker, once for all slots of this core that the command reaches."""
        if generation > self._cleared:
            self._clear(generation)

    def catch_up_cache(self, generation: int) -> None:
        """Clear the cache if a command that this worker has missed requested it."""
        if generation > self._kept.generations.get(self.step, 0):
            self._clear(generation)

    def _clear(self, generation: int) -> None:
        self._cleared = self._kept.generations[self.step] = generation
        try:
            self.function.clear_cache()
        finally:
            self._kept.values.clear()
