"""Joins: how many records a second the interval join and the as-of join take, as columns in one process.

Both run on rows of 100,000 keys, micro-batch after micro-batch, with the rows that they hold; without decoding, shuffle
and storage.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.joins.held_rows import HeldRows, Sides
from penstock.joins.join_step import JoinStep, JoinTimes
from penstock.streams.graph import ProcessNode

__all__ = ["main", "measured"]

_SCHEMA: Final = "k BIGINT, v DOUBLE, at BIGINT"
_STEP_MS: Final = 10_000


def _step(kind: str) -> JoinStep:
    """Return the function of a join, as a job describes it."""
    job = ps.Job("joins")
    left, right = (
        job.data_stream(name, schema=_SCHEMA, event_time="at", watermarks=ps.Watermarks.bounded("1s")).key_by(
            "k"
        )
        for name in ("left", "right")
    )
    fields = ["left.k", "left.v", "right.v AS w"]
    if kind == "interval":
        left.interval_join("join", right, lower="0s", upper="10s", fields=fields)
    else:
        left.as_of_join("join", right, fields=fields)
    (node,) = (node for node in job.graph.nodes.values() if isinstance(node, ProcessNode))
    assert isinstance(node.function, JoinStep)
    return node.function


def measured(kind: str, rows: int, keys: int, batches: int) -> tuple[float, int]:
    """Return how many records of both sides a join takes in a second, and how many records it emits."""
    step, chance = _step(kind), np.random.default_rng(17)
    held: Sides = (HeldRows.empty(step.kinds[0]), HeldRows.empty(step.kinds[1]))
    names = pa.array(np.arange(keys))
    emitted, spent_s, before_ms = 0, 0.0, None
    for number in range(batches):
        new: list[Any] = []
        for side in range(2):
            slots = chance.integers(0, keys, rows)
            times = np.sort(chance.integers(0, _STEP_MS, rows)) + number * _STEP_MS
            batch = pa.RecordBatch.from_arrays(
                [pa.array(slots), pa.array(chance.random(rows)), pa.array(times)],
                schema=step.kinds[side].schema,
            )
            new.append(HeldRows.new(slots, times, batch, step.kinds[side]))
        after_ms = (number + 1) * _STEP_MS - 1000
        begun_s = time.perf_counter()
        joined = step.join(held, (new[0], new[1]), JoinTimes(before_ms, after_ms), names)
        spent_s += time.perf_counter() - begun_s
        held, before_ms = joined.held, after_ms
        emitted += joined.batch.num_rows
    return 2 * rows * batches / spent_s, emitted


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds less, for a look")
    rows = 50_000 if parser.parse_args().small else 500_000
    for kind in ("interval", "as-of"):
        rate, emitted = measured(kind, rows, 100_000, 5)
        print(f"{kind} join: {rate:,.0f} records a second, {emitted:,} emitted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
