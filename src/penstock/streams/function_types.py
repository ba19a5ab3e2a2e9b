"""Function types: the parameter and return types of user functions, for type checkers.

The type variables default to `Any` where the type is unknown: for records of a stream with a DDL schema, and for keys
taken from fields.
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
    """A `ProcessFunction`, typed by the annotations of its `process_record`."""

    def process_record(self, record: _Record, ctx: Context, /) -> Iterable[_Result] | None:
        """Process a record; see `ProcessFunction.process_record`."""

    def clear_cache(self) -> None:
        """Drop cached values; see `ProcessFunction.clear_cache`."""


class ConnectedRecordFunction(RecordFunction[_Record, _Result], Protocol[_Record, _Result]):
    """A `ConnectedProcessFunction`. The records that `process_control` takes are not typed by control stream."""

    def process_control(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process a control record; see `ConnectedProcessFunction.process_control`."""


class WindowRecordFunction(Protocol[_Key, _Record, _Result]):
    """A `WindowFunction`, typed by the annotations of its `process`."""

    def process(
        self, key: _Key, records: Sequence[_Record], ctx: WindowContext, /
    ) -> Iterable[_Result] | None:
        """Process the records of a window; see `WindowFunction.process`."""
