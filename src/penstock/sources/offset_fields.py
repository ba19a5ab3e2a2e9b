"""The fields of offsets in Spark's log, beside the positions of one kind of source or another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["FIRST_THERE", "PARTITIONS", "PLANNED", "offsets_by_topic"]

PLANNED: Final = "planned_ms"
"""The field of an offset, beside the position, with the time when it was planned, in milliseconds since 1970."""

FIRST_THERE: Final = "@first"
"""The field of the offset of a Kafka stream, beside the position, with the first offsets of partitions whose earlier
records were deleted before they were read."""

PARTITIONS: Final = "@partitions"
"""The field of the offset of a log of the user's own that has the positions, by partition. No topic has that name."""


def offsets_by_topic(offset: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """Return the next offsets in the offset of a Kafka stream, by topic and number of the partition."""
    return {name: found for name, found in offset.items() if name not in (PLANNED, FIRST_THERE)}
