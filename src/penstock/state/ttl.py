"""Time to live: how long the values of a state are kept."""

from __future__ import annotations

import datetime as dt
import typing
from dataclasses import dataclass
from typing import Final, Literal

from penstock.base.instants import MILLISECOND
from penstock.errors import SchemaError

__all__ = ["Ttl", "expires_at_ms"]

_LAST_MS: Final = 2**63 - 1

Touch = Literal["write", "read_and_write"]
Clock = Literal["processing", "event"]


@dataclass(frozen=True)
class Ttl:
    """A time to live of the values of a state: `ValueState(int, ttl=Ttl(timedelta(hours=1)))`.

    The value of a key expires when `after` has passed since it was last touched. A list or mapping expires as a whole.

    >>> from datetime import timedelta
    >>> Ttl(timedelta(days=7), on="read_and_write").time
    'processing'

    Args:
        after: how long a value is kept after the last touch, in whole milliseconds, at least one.
        on: what touches a value: "write" for writes only, or "read_and_write".
        time: the clock: "processing" for the time of the micro-batch, or "event" for the event time of the records,
            which their stream must declare.

    """

    after: dt.timedelta
    on: Touch = "write"
    time: Clock = "processing"

    def __post_init__(self) -> None:
        if not isinstance(self.after, dt.timedelta):
            raise SchemaError(f"A time to live is a timedelta, not {self.after!r}.")
        if self.after < MILLISECOND or self.after % MILLISECOND:
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
        """The time to live in milliseconds."""
        return self.after // MILLISECOND


def expires_at_ms(ttl: Ttl, now_ms: int) -> int:
    """Return when a value touched now expires. Both are milliseconds since 1970; the result is capped at 64 bits."""
    return min(now_ms + ttl.after_ms, _LAST_MS)
