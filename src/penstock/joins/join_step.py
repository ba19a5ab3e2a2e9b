"""Join steps: the base of all joins: their states, their late records, and how pairs become records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.instants import FIRST_MS, LAST_MS
from penstock.joins.held_rows import Ints, Mask, Sides, SideState
from penstock.joins.pair_expressions import NONE, PairExpressions, Pairs
from penstock.operators.expression_transforms import make_settings, read_parameters
from penstock.operators.functions import ProcessFunction
from penstock.records.types import RecordType
from penstock.state.shared import Setting
from penstock.state.values import KeyedState, ValueState

__all__ = [
    "DUE",
    "END_OF_ROWS",
    "JOINS",
    "LATE_LEFT",
    "LATE_RIGHT",
    "NEVER",
    "SIDES",
    "JoinStep",
    "JoinTimes",
    "Joined",
    "Problem",
    "due_times",
    "earliest_by_clock",
    "earliest_by_event",
    "join_step",
    "pair_with_none",
    "stored_due",
]

JOINS: Final = "@joins"
"""The stream that dead letters of pairs name."""

DUE: Final = "due"
"""The state that says when a key must be looked at next, for unmatched rows and for rows that are no longer needed."""

SIDES: Final = ("left", "right")
"""The states with the rows of both sides."""

LATE_LEFT: Final = "late_left"
LATE_RIGHT: Final = "late_right"

_TIME: Final = pa.timestamp("us", "UTC")
END_OF_ROWS: Final = 2**62
"""Later than all times of records, also with the bounds of an interval."""

NEVER: Final = 2**63 - 1
"""A row that falls due at this time does so when time ends."""


@dataclass(frozen=True)
class JoinTimes:
    """The watermark while the records of a micro-batch are processed, and the one after them if it has moved.

    `now_ms` is the time of the micro-batch, and `ends` is whether time ends after its records.
    """

    before_ms: int | None
    after_ms: int | None
    now_ms: int = 0
    ends: bool = False

    @property
    def passed_ms(self) -> int:
        """The latest watermark so far; later than all times at the end of time, with room for sums."""
        known = [at for at in (self.before_ms, self.after_ms) if at is not None]
        return min(max(known, default=-END_OF_ROWS), END_OF_ROWS)


@dataclass(frozen=True)
class Problem:
    """A pair that cannot become a record, as JSON, and why."""

    raw: bytes
    reason: str


@dataclass
class Joined:
    """The result of a join: records with the slots of their keys and their times, and the rows that it still holds.

    `due` is, for each key, the time of its next check; `changed` are the slots of keys whose rows have changed.
    """

    batch: pa.RecordBatch
    slots: Ints
    times: Ints
    held: Sides
    due: Ints
    changed: Ints
    problems: list[Problem] = field(default_factory=list)


class JoinStep(ProcessFunction):
    """The function of a step that joins two streams by key. The engine's `JoinRun` gives it rows, as columns.

    A kind of join implements `join` for the rows of many keys at once. `kinds` are the record types of both sides.
    """

    # The inputs of the step that are the left and the right side.
    side_inputs: tuple[int, int] = (0, 1)
    # Whether each record needs an event time.
    needs_time: ClassVar[bool] = True

    def __init__(
        self,
        kinds: tuple[RecordType, RecordType],
        how: str,
        expressions: PairExpressions | None,
        types: Mapping[str, pa.DataType],
    ) -> None:
        self.kinds: Final = kinds
        self.how: Final = how
        self._expressions: Final = expressions
        used = () if expressions is None else expressions.parameters
        self._types: Final = {name: types[name] for name in used}
        for state in self.states().values():
            state.spec()

    @property
    def expressions(self) -> PairExpressions:
        """The condition and the fields of the join."""
        assert self._expressions is not None
        return self._expressions

    @property
    def record_type(self) -> RecordType:
        """The type of the records that the join emits."""
        return self.expressions.record_type

    @property
    def keeps_left(self) -> bool:
        """Whether records of the left side without a match are emitted."""
        return self.how in ("left", "full")

    @property
    def keeps_right(self) -> bool:
        """Whether records of the right side without a match are emitted."""
        return self.how in ("right", "full")

    @property
    def is_by_clock(self) -> bool:
        """Whether keys fall due by the clock instead of the watermark."""
        return False

    def states(self) -> dict[str, KeyedState]:
        """Return the states of the step: the rows of both sides, and when a key is due."""
        due: ValueState[dt.datetime] = ValueState(dt.datetime)
        due.name = DUE
        kept = (self.keeps_left, self.keeps_right)
        sides = [
            SideState(name, kind, with_matched=self.has_marks and keeps)
            for name, kind, keeps in zip(SIDES, self.kinds, kept, strict=True)
        ]
        return {**{state.name: state for state in sides}, DUE: due}

    @property
    def has_marks(self) -> bool:
        """Whether rows remember that they were matched, because pairs and unmatched rows are emitted at other times."""
        return False

    def late(self, held: Sides, new: Sides, before_ms: int) -> tuple[Mask, Mask]:
        """Return which new records of each side are too late to be joined, and go to a side output."""
        raise NotImplementedError

    def join(
        self,
        held: Sides,
        new: Sides,
        times: JoinTimes,
        keys: pa.Array,
    ) -> Joined:
        """Join new rows with those held and with each other, and advance the time. `keys` has the key of each slot."""
        raise NotImplementedError

    def parameters(self) -> dict[str, pa.Scalar]:
        """Return the current values of the parameters of expressions."""
        return read_parameters(self, self._types)

    def true_pairs(self, pairs: Pairs, sides: Sides) -> tuple[Pairs, list[Problem]]:
        """Return the pairs for which the condition is true, and those for which it has no value."""
        mask, failures = self.expressions.true(pairs, sides, self.parameters())
        return pairs.where(mask), self._problems(pairs, sides, failures)

    def records(self, pairs: Pairs, sides: Sides) -> tuple[pa.RecordBatch, Pairs, list[Problem]]:
        """Return the records of pairs, the pairs that have one, and those that have none."""
        batch, failures = self.expressions.selected(pairs, sides, self.parameters())
        if not failures:
            return batch, pairs, []
        keep = np.ones(len(pairs), bool)
        keep[list(failures)] = False
        return batch.filter(pa.array(keep)), pairs.where(keep), self._problems(pairs, sides, failures)

    def _problems(self, pairs: Pairs, sides: Sides, failures: Mapping[int, str]) -> list[Problem]:
        return [
            Problem(self.expressions.raw((int(pairs.left[row]), int(pairs.right[row])), sides), reason)
            for row, reason in failures.items()
        ]


def due_times(keys: int, *found: tuple[Ints, Ints]) -> Ints:
    """Return for each slot the earliest of some times, given as slots and times; `NEVER` for none."""
    due = np.full(keys, NEVER, np.int64)
    for slots, times in found:
        np.minimum.at(due, slots, times)
    return due


def stored_due(due: Ints) -> pa.Array:
    """Return the stored column of due times; null for a key that waits for nothing."""
    at_us = np.clip(due, FIRST_MS, LAST_MS) * 1000
    return pa.array(at_us, pa.int64(), mask=due == NEVER).cast(_TIME)


def _no_due(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return that no key is due."""
    return np.empty(0, np.int64), rows.column(0).slice(0, 0)


def earliest_by_event(rows: pa.RecordBatch, domain: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return when each key is due by the watermark, in microseconds since 1970, and the keys."""
    return _earliest(rows) if domain == "event" else _no_due(rows)


def earliest_by_clock(rows: pa.RecordBatch, domain: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return when each key is due by the clock, in microseconds since 1970, and the keys."""
    return _earliest(rows) if domain == "processing" else _no_due(rows)


def _earliest(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], pa.Array]:
    due = rows.column(DUE)
    known = due.is_valid()
    at_us = pc.filter(due, known).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return at_us, rows.column(0).filter(known)


def pair_with_none(rows: Ints, side: int) -> tuple[Ints, Ints]:
    """Return rows of one side as the two columns of pairs that have no other row."""
    none = np.full(len(rows), NONE, np.int64)
    return (rows, none) if side == 0 else (none, rows)


def join_step(
    kind: type[JoinStep], settings: Mapping[str, Setting[Any]], *arguments: Any, **options: Any
) -> JoinStep:
    """Return the function of a step with these settings as parameters of its expressions."""
    names = make_settings(settings)
    made: Any = type(kind.__name__, (kind,), names)
    found: JoinStep = made(*arguments, **options)
    found.side_outputs = {LATE_LEFT: found.kinds[0], LATE_RIGHT: found.kinds[1]}  # type: ignore[misc]  # of this step alone, not of its class
    return found
