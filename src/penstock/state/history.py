"""History: values that hold from an event time on, so that each record sees the value at its own time."""

from __future__ import annotations

import bisect
import datetime as dt
import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import SchemaError
from penstock.records.schemas import arrow_type_of
from penstock.state.state_spec import StateSpec, fit_value, value_spec
from penstock.state.values import BoundValueState, CheckedValueState, ValueState

__all__ = [
    "DEFAULT_VERSIONS",
    "BoundTemporalState",
    "CheckedTemporalState",
    "TemporalState",
    "Version",
    "add_version",
    "as_of",
]

T = TypeVar("T")

DEFAULT_VERSIONS: Final = 100


class Version(NamedTuple):
    """A value and the event time from which it holds; None means from the beginning."""

    at: dt.datetime | None
    value: Any


def as_of(versions: Sequence[Any], time: dt.datetime | None) -> Any:
    """Return the version that holds at a time, or None. Without a time: the one that holds from the beginning.

    The versions are sorted by time, the one from the beginning first.
    """
    if not versions:
        return None
    dated = versions[0].at is not None
    if time is None:
        return None if dated else versions[0]
    place = bisect.bisect_right(versions, time, lo=0 if dated else 1, key=_at)
    return versions[place - 1] if place else None


def add_version(versions: Sequence[T], version: T, limit: int) -> list[T]:
    """Return the versions with one added. It replaces one of the same time; beyond the limit the oldest are dropped."""
    at = version.at  # type: ignore[attr-defined]  # a version's class is made for its type, with `at`
    kept = [known for known in versions if known.at != at]  # type: ignore[attr-defined]  # a version's class is made for its type, with `at`
    if at is None:
        kept.insert(0, version)
    else:
        start = 1 if kept and kept[0].at is None else 0  # type: ignore[attr-defined]  # a version's class is made for its type, with `at`
        bisect.insort_right(kept, version, lo=start, key=_at)
    return kept[-limit:]


def _at(version: Any) -> Any:
    return version.at


class TemporalState(ValueState[T]):
    """One value per key, with a history by event time.

    A control record or command that is effective at an event time sets the value from that time on; any other sets the
    value that holds from the beginning, before the first of these times. `get` returns the value that holds at the
    event time of the current record, whatever the order in which records and controls arrive. The stream of the records
    must declare its event time: `job.data_stream(..., event_time="at")`.

    >>> class Pricing(ConnectedProcessFunction):
    ...     price = TemporalState(float)
    ...     def process_control(self, record, ctx):
    ...         self.price.set(record.price)
    ...     def process_record(self, sale, ctx):
    ...         yield Revenue(sale.id, sale.count * (self.price.get() or 0.0))

    Args:
        value_type: as for `ValueState`.
        versions: how many versions are kept per key, at least 1; beyond that the oldest are dropped.
        renamed_from: as for `ValueState`.

    """

    def __init__(
        self, value_type: Any, *, versions: int = DEFAULT_VERSIONS, renamed_from: str | None = None
    ) -> None:
        super().__init__(value_type, renamed_from=renamed_from)
        if versions < 1:
            raise SchemaError(f"versions is {versions}; a temporal state keeps at least 1.")
        self.versions = versions

    def spec(self) -> StateSpec:
        """Return how the state is stored: as a list of versions."""
        version = _version_type(value_spec(self._checked_name(), self._value_type).python_type)
        kind = list[version]  # type: ignore[valid-type]  # the type is made at run time
        return StateSpec(self.name, kind, arrow_type_of(kind), None)


@functools.cache
def _version_type(value_type: Any) -> type:
    """Return the stored type of a version of one value type."""
    return msgspec.defstruct(
        "Version", [("at", dt.datetime | None), ("value", value_type | None)], frozen=True
    )


class BoundTemporalState(BoundValueState):
    """A temporal state at run time."""

    __slots__ = ("_limit", "_value", "_version")

    def describe(self, declared: TemporalState[Any]) -> None:
        """Take over the declaration."""
        self._limit = declared.versions
        self._value = value_spec(declared.name, declared.value_type)
        self._version = _version_type(self._value.python_type)

    def get(self) -> Any:  # noqa: D102  # as declared
        found = as_of(super().get() or (), self._cursor.time)
        return None if found is None else found.value

    def set(self, value: Any) -> None:  # noqa: D102  # as declared
        if value is not None and type(value) is not self._value.python_type:
            value = fit_value(value, self._value)
        if value is None and self._cursor.time is None:
            # No value from the beginning: a key without any other version has no state.
            dated = [known for known in super().get() or [] if known.at is not None]
            super().set(dated or None)
            return
        version = self._version(self._cursor.time, value)
        super().set(add_version(super().get() or [], version, self._limit))

    def clear(self) -> None:
        """Remove the whole history of the current key."""
        super().set(None)

    def _fit(self, value: Any) -> Any:
        # This state creates the versions itself.
        return value

    def as_of(self, slots: npt.NDArray[np.int64], times: Sequence[dt.datetime]) -> list[Any]:
        """In `process_batch`: return for each slot the value that holds at the time, or None."""
        stored = self._column.columns().values
        kind = list[self._version]  # type: ignore[name-defined]  # the type is made at run time
        known = {
            int(slot): msgspec.convert(stored[slot] or [], kind, from_attributes=True)
            for slot in np.unique(slots)
        }
        found = [as_of(known[slot], time) for slot, time in zip(slots.tolist(), times, strict=True)]
        return [None if version is None else version.value for version in found]


class CheckedTemporalState(BoundTemporalState, CheckedValueState):
    """A temporal state that checks at once whether its value can be stored."""

    __slots__ = ()


TemporalState.run_time = (BoundTemporalState, CheckedTemporalState)
