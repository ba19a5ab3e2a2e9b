"""The shop of the guide of time at work."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from encoded_commands import command_to, commands

import penstock as ps
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

__all__ = ["GUIDE", "NOON", "Shop", "counted", "described"]

GUIDE = Path(__file__).parents[2] / "docs" / "time.md"
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


class Shop:
    """The job of the guide at work. A visit is (visitor, page, seconds past noon) and perhaps how long it was."""

    def __init__(self, guide: dict[str, Any], job: ps.Job | None = None, **options: Any) -> None:
        self._guide = guide
        self.job = BatchRunner(job or guide["job"], **options)

    def run(self, *visits: tuple[Any, ...], ends: bool = False, partition: str = "p") -> BatchOutcome:
        made = [
            self._guide["Visit"](visitor, page, NOON + dt.timedelta(seconds=seconds), *more)
            for visitor, page, seconds, *more in visits
        ]
        result = self.job.run({"visits": [(partition, made)]} if made else {}, ends=ends)
        assert not result.dead_letters
        return result

    def command(self, kind: str, payload: Any = None, **more: Any) -> Any:
        named = {"id": f"{kind} {payload} {more}", **more}
        return self.job.run(commands(command_to(None, kind, payload, **named))).receipts[-1]


def counted(result: BatchOutcome, sink: str = "views") -> list[tuple[str, int, int]]:
    """Page, start in seconds past noon, and value of windows."""
    return sorted(
        (one.page, int((one.window_start - NOON).total_seconds()), one.value) for one in result.output(sink)
    )


def described(guide: dict[str, Any], **stream: Any) -> tuple[ps.Job, ps.KeyedStream]:
    """A job of one stream, keyed by page."""
    job = ps.Job("other", key_groups=2)
    return job, job.data_stream("visits", schema=guide["Visit"], **stream).key_by("page")
