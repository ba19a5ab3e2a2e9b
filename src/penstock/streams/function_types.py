"""Function types: what the functions of a chain take and give, for type checkers.

A type variable with a default stands for `Any` where nothing says what it is: for the records of a stream that is
described by DDL, or for keys that a field holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from typing_extensions import TypeVar

from penstock.operators.functions import Context
from penstock.windows.contexts import WindowContext

__all__ = [
    "AggregateT",
    "ConnectedRecordFunction",
    "KeyT",
    "RecordFunction",
    "RecordT",
    "ResultT",
    "WindowRecordFunction",
]

KeyT = TypeVar("KeyT", default=Any)
RecordT = TypeVar("RecordT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
AggregateT = TypeVar("AggregateT", default=Any)

_Key = TypeVar("_Key", contravariant=True)
_Record = TypeVar("_Record", contravariant=True)
_Result = TypeVar("_Result", covariant=True)


class RecordFunction(Protocol[_Record, _Result]):
    """A `ProcessFunction`, by the types in the annotations of its `process_record`."""

    def process_record(self, record: _Record, ctx: Context, /) -> Iterable[_Result] | None:
        """As in `ProcessFunction`."""

    def clear_cache(self) -> None:
        """As in `ProcessFunction`."""


class ConnectedRecordFunction(RecordFunction[_Record, _Result], Protocol[_Record, _Result]):
    """A `ConnectedProcessFunction`. What its `process_control` takes is not told apart by control stream."""

    def process_control(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """As in `ConnectedProcessFunction`."""


class WindowRecordFunction(Protocol[_Key, _Record, _Result]):
    """A `WindowFunction`, by the types in the annotations of its `process`."""

    def process(
        self, key: _Key, records: Sequence[_Record], ctx: WindowContext, /
    ) -> Iterable[_Result] | None:
        """As in `WindowFunction`."""
