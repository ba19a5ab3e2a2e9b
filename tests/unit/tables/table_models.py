"""Tables in plain Python: the model with which table operators are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

import penstock as ps
from penstock.testing import JobHarness

Row = tuple[Any, ...]


def row_of(record: Any) -> tuple[Row, str]:
    """Return the row of a change, and its kind."""
    *row, kind = (getattr(record, name) for name in record.__struct_fields__)
    return tuple(row), kind.value


def folded(records: Iterable[Any]) -> Counter[Row]:
    """Return the table that results from changes. Fails when one removes a row that is not there."""
    table: Counter[Row] = Counter()
    for row, kind in map(row_of, records):
        if kind in ("+I", "+U"):
            table[row] += 1
        else:
            assert table[row] > 0, f"{kind} of {row}, which is not in the table"
            table[row] -= 1
    return +table


def by_key(records: Iterable[Any], key: Callable[[Row], Hashable]) -> dict[Hashable, Row]:
    """Return the table that results from changes, by key. Fails when a row replaces one that was not removed."""
    table: dict[Hashable, Row] = {}
    for row, kind in map(row_of, records):
        if kind == "+I":
            assert key(row) not in table, row
        if kind in ("-U", "-D"):
            assert table.pop(key(row)) == row
        else:
            table[key(row)] = row
    return table


def run_through(
    job: ps.Job, stream: str, batches: Sequence[Sequence[Any]], disturbances: Sequence[str], sink: str
) -> list[list[Any]]:
    """Run a job on batches, each followed by a disturbance, and return all records of a sink after each batch."""
    run = JobHarness(job, parallelism=2, strict=True, partitions={stream: 2})
    found = []
    for number, batch in enumerate(batches):
        for place, record in enumerate(batch):
            run.send(stream, record, partition=(place + number) % 2 if is_partitioned(batch) else 0)
        run.run_batch()
        disturb(run, disturbances[number % len(disturbances)])
        found.append(run.output(sink))
    return found


def is_partitioned(batch: Sequence[Any]) -> bool:
    """Return whether records may go to any partition: this holds if they only insert."""
    return not any("op" in record for record in batch)


def disturb(run: JobHarness, kind: str) -> None:
    """Crash, restart or rescale a job, or do nothing."""
    if kind == "crash":
        run.crash()
    elif kind == "restart":
        run.restart()
    elif kind == "rescale":
        run.rescale(3 if run.runner.plan.parallelism != 3 else 1)


DISTURBANCES = ("none", "crash", "restart", "rescale")


@st.composite
def changed_tables(draw: st.DrawFn, rows_of: st.SearchStrategy[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Draw batches of changes, each of which removes or updates only rows of the table."""
    rows: list[dict[str, Any]] = []
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.sampled_from(["insert", "update", "delete"])) if rows else "insert"
            if kind != "insert":
                gone = rows.pop(draw(st.integers(0, len(rows) - 1)))
                batch.append(gone | {"op": "-U" if kind == "update" else "-D"})
            if kind != "delete":
                rows.append(draw(rows_of))
                batch.append(rows[-1] | {"op": "+U" if kind == "update" else "+I"})
        batches.append(batch)
    return batches
