"""The names of the streams that jobs have besides those that their users name."""

from __future__ import annotations

from typing import Final

__all__ = ["DEAD_LETTERS", "RECEIPTS", "STARTS"]

RECEIPTS: Final = "receipts"
DEAD_LETTERS: Final = "dead-letters"
STARTS: Final = "@starts"
"""A stream without records that advances at each start of a job with timers. No user stream can have its name."""
