"""Random streams for joins, jobs that join them, and runs in random micro-batches with failures in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import penstock as ps
from penstock.testing import JobHarness

__all__ = [
    "LATENESS_MS",
    "SCHEMA",
    "Arrivals",
    "Row",
    "arrivals",
    "joined",
    "keyed",
    "outcome_of",
]

LATENESS_MS = 20
SCHEMA = "k STRING, v BIGINT, at BIGINT"

Row = tuple[str, int | None, int]
"""The key, the value and the time of a record."""


@dataclass
class Arrivals:
    """Records by stream in micro-batches, and what happens after each of these."""

    batches: list[dict[str, list[Row]]]
    events: list[str]

    def rows(self, stream: str) -> list[Row]:
        """Return all records of a stream."""
        return [row for batch in self.batches for row in batch[stream]]


def keyed(job: ps.Job, name: str, schema: str = SCHEMA) -> Any:
    """Return a keyed stream with event time."""
    marks = ps.Watermarks.bounded(f"{LATENESS_MS}ms")
    return job.data_stream(name, schema=schema, event_time="at", watermarks=marks).key_by("k")


@st.composite
def arrivals(draw: st.DrawFn, streams: Sequence[str] = ("left", "right"), last_ms: int = 120) -> Arrivals:
    """Draw streams whose records are within the lateness, in some micro-batches."""
    one = st.tuples(
        st.sampled_from("abc"),
        st.none() | st.integers(0, 3),
        st.integers(0, last_ms),
        st.integers(0, LATENESS_MS),
        st.integers(0, 3),
    )
    count = draw(st.integers(1, 5))
    batches: list[dict[str, list[Row]]] = [{name: [] for name in streams} for _ in range(count)]
    for name in streams:
        found = draw(st.lists(one, max_size=25))
        # A record that is behind others by at most the lateness is in time.
        ordered = sorted(found, key=lambda row: row[2] + row[3])
        places = sorted(draw(st.lists(st.integers(0, count - 1), min_size=len(found), max_size=len(found))))
        for place, (key, value, at_ms, _, _) in zip(places, ordered, strict=True):
            batches[place][name].append((key, value, at_ms))
    events = st.sampled_from(["", "", "crash", "restart", "rescale"])
    return Arrivals(batches, draw(st.lists(events, min_size=count, max_size=count)))


def outcome_of(
    job: ps.Job, given: Arrivals, names: Mapping[str, Sequence[str]] | None = None
) -> tuple[JobHarness, Counter[tuple[Any, ...]]]:
    """Run a job whose sink is "out" on the records, and return its output, sorted."""
    run = JobHarness(job, parallelism=2)
    tasks = 2
    for batch, event in zip(given.batches, given.events, strict=True):
        for stream, rows in batch.items():
            fields = (names or {}).get(stream, ("k", "v", "at"))
            run.send(stream, *(dict(zip(fields, row, strict=True)) for row in rows))
        run.run_batch()
        if event == "crash":
            run.crash()
        elif event == "restart":
            run.restart()
        elif event == "rescale":
            tasks = 5 - tasks
            run.rescale(tasks)
    run.finish()
    run.crash()
    return run, Counter(_values(one) for one in run.output("out"))


def joined(
    left: Sequence[Row], right: Sequence[Row], how: str, matches: Callable[[Row, Row], bool]
) -> Counter[tuple[Any, ...]]:
    """Return a join of plain rows: each matching pair, and unmatched records as `how` says."""
    found: Counter[tuple[Any, ...]] = Counter()
    for one in left:
        mine = [other for other in right if matches(one, other)]
        found.update((*one, *other) for other in mine)
        if not mine and how in ("left", "full"):
            found[(*one, None, None, None)] += 1
    for other in right:
        if how in ("right", "full") and not any(matches(one, other) for one in left):
            found[(None, None, None, *other)] += 1
    return found


def _values(record: Any) -> tuple[Any, ...]:
    """The values of a record, in the order of its fields."""
    return tuple(tuple(one) if isinstance(one, list) else one for one in _fields(record))


def _fields(record: Any) -> list[Any]:
    names = getattr(record, "__struct_fields__", None) or list(vars(record))
    return [getattr(record, name) for name in names]
