"""Time to live: how long the values of a state are kept."""

from __future__ import annotations

import datetime as dt
import typing
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import SchemaError

__all__ = ["Ttl", "expires_at_ms", "is_expired"]

_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_LAST_MS: Final = 2**63 - 1

Touch = Literal["write", "read_and_write"]
Clock = Literal["processing", "event"]


@dataclass(frozen=True)
class Ttl:
    """How long the value of a key is kept after it was last touched: `ValueState(int, ttl=Ttl(timedelta(hours=1)))`.

    A value is gone as a whole, also a list or a mapping, as soon as the time since then is not less than `after`.

    >>> from datetime import timedelta
    >>> Ttl(timedelta(days=7), on="read_and_write").time
    'processing'

    Args:
        after: how long; at least a millisecond, in whole milliseconds.
        on: what keeps a value alive: "write", or "read_and_write" for reading as well.
        time: "processing": the time of the micro-batch; "event": the event time of the records, which their stream must
            declare.

    """

    after: dt.timedelta
    on: Touch = "write"
    time: Clock = "processing"

    def __post_init__(self) -> None:
        if not isinstance(self.after, dt.timedelta):
            raise SchemaError(f"A time to live is a timedelta, not {self.after!r}.")
        if self.after < _MILLISECOND or self.after % _MILLISECOND:
            raise SchemaError(
                f"A time to live of {self.after} cannot be kept; give whole milliseconds, at least one."
            )
        for name, kind in (("on", Touch), ("time", Clock)):
            allowed, given = typing.get_args(kind), getattr(self, name)
            if given not in allowed:
                raise SchemaError(
                    f"A time to live has {name}={given!r}; it is {' or '.join(map(repr, allowed))}."
                )

    @property
    def after_ms(self) -> int:
        """How long, in milliseconds."""
        return self.after // _MILLISECOND


def expires_at_ms(ttl: Ttl, now_ms: int) -> int:
    """When a value expires that is touched now; both in milliseconds since 1970, at most what 64 bits hold."""
    return min(now_ms + ttl.after_ms, _LAST_MS)


def is_expired(expires_ms: int, now_ms: int) -> bool:
    """Whether a value that expires at a time is gone now."""
    return now_ms >= expires_ms
