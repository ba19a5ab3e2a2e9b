"""Task reports: the reports of tasks to the driver that serve metrics only, besides counts."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.metrics.latency import Latency
from penstock.metrics.source_times import SourceTimes, TimesRead

__all__ = [
    "EMITTED",
    "LAG",
    "LATENCY",
    "SLOT_TIME",
    "TIMES_READ",
    "SlotTime",
    "WaitedFor",
    "decode_emitted",
    "decode_latency",
    "decode_slot_time",
    "decode_times_read",
    "decode_waited_for",
    "encode_report",
]

LATENCY: Final = "latency"
"""The kind of a report with the latency of a sink that has its records at once."""
EMITTED: Final = "emitted"
"""The kind of a report with the source times of what caused the output of a sink, which is visible at the commit."""
TIMES_READ: Final = "times"
"""The kind of a report with the times of what was read of a stream in a micro-batch."""
LAG: Final = "lag"
"""The kind of a report with what waited in the partitions of a task when an interval ended."""
SLOT_TIME: Final = "slot-time"
"""The kind of a report with the time that a slot has used in an interval."""


class SlotTime(msgspec.Struct, array_like=True, frozen=True):
    """The time that a slot has used in an interval, in seconds.

    `reading_s` is the processor time of its readers, which work beside it. The others are parts of its own time:
    `rounds_s` ran steps, `sinks_s` wrote to sinks, `storing_s` stored the state at the end. The rest of the time it
    waited.
    """

    reading_s: float = 0.0
    rounds_s: float = 0.0
    sinks_s: float = 0.0
    storing_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """The time for which the slot and its readers worked."""
        return self.reading_s + self.rounds_s + self.sinks_s + self.storing_s


class WaitedFor(msgspec.Struct, array_like=True, frozen=True):
    """The longest time that the oldest waiting record may have waited, in seconds; None if unknown."""

    seconds: float | None


_encoder: Final = msgspec.msgpack.Encoder()

decode_latency: Final = msgspec.msgpack.Decoder(Latency).decode
"""Decode the body of a report of the kind LATENCY."""
decode_emitted: Final = msgspec.msgpack.Decoder(SourceTimes).decode
"""Decode the body of a report of the kind EMITTED."""
decode_times_read: Final = msgspec.msgpack.Decoder(TimesRead).decode
"""Decode the body of a report of the kind TIMES_READ."""
decode_slot_time: Final = msgspec.msgpack.Decoder(SlotTime).decode
"""Decode the body of a report of the kind SLOT_TIME."""
decode_waited_for: Final = msgspec.msgpack.Decoder(WaitedFor).decode
"""Decode the body of a report of the kind LAG."""


def encode_report(body: Latency | SourceTimes | TimesRead | SlotTime | WaitedFor) -> bytes:
    """Encode the body of a report."""
    return _encoder.encode(body)
