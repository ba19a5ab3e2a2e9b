"""Tables in tests: the rows that the changes of a changelog make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.tables.changes import CHANGE, Change

__all__ = ["table_of"]

_ADDS = (Change.INSERT, Change.UPDATE_AFTER)


def table_of(changes: Iterable[Any]) -> list[Any]:
    """Return the rows of the table that changes make, each as a tuple of its fields, in the order of their insertion.

    `changes` are what a sink with `changes="records"` was given, such as `run.output("totals")`. A row that is updated
    keeps its place.

    >>> job = ps.Job("doors")
    >>> visits = job.data_stream("visits", schema="door STRING")
    >>> counts = visits.group_by("door").aggregate("counts", {"n": ps.Aggregate.count()})
    >>> counts.sink_to("counts", changes="records")
    >>> run = JobHarness(job)
    >>> for door in ("north", "south", "north"):
    ...     run.send("visits", {"door": door})
    ...     outcome = run.run_batch()
    >>> table_of(run.output("counts"))
    [('north', 2), ('south', 1)]

    Raises:
        ValueError: a change removes a row that is not in the table, or a record is not a change.

    """
    rows: list[Any] = []
    gap: int | None = None
    for change in changes:
        kind = getattr(change, CHANGE, None)
        if kind is None:
            raise ValueError(f"{change!r} is not a change, since it has no field {CHANGE!r}")
        row = tuple(getattr(change, name) for name in change.__struct_fields__ if name != CHANGE)
        if kind in _ADDS:
            rows.insert(len(rows) if gap is None or kind is Change.INSERT else gap, row)
            gap = None
            continue
        if row not in rows:
            raise ValueError(f"the change {kind.value} takes {row!r} away, which is not in the table")
        place = rows.index(row)
        del rows[place]
        gap = place if kind is Change.UPDATE_BEFORE else None
    return rows
