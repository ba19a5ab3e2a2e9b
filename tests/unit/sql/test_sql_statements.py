"""Statements in SQL: each bounded and as a stream with restarts and rescales, against DuckDB on the same data."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from sql_cases import CASES, Case, data, described, expected, rows_of

import penstock as ps
from penstock.testing import JobHarness


def written(job: ps.Job, run: JobHarness) -> Counter[tuple[str, ...]]:
    (sink,) = job.graph.sinks()
    return rows_of(run.output(sink.name), sink.upsert_key)


def sent(job: ps.Job, run: JobHarness, low: float, high: float) -> None:
    """Send the part of each stream between two fractions of it."""
    for source in job.graph.sources():
        records = data()[source.name]
        run.send(source.name, *records[int(len(records) * low) : int(len(records) * high)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_statement_means_the_same_bounded_and_as_a_stream(case: Case) -> None:
    """Equal to what DuckDB answers; the stream is cut at random, restarted and rescaled."""
    job = described(case)
    wanted = expected(case)
    assert wanted, "the case should have a result"
    bounded = JobHarness(job, parallelism=2)
    sent(job, bounded, 0, 1)
    bounded.finish()
    assert not bounded.dead_letters()
    assert written(job, bounded) == wanted
    rng = random.Random(case.name)
    run = JobHarness(job, parallelism=1, arrival_seed=rng.randrange(100))
    cuts = sorted([0.0, 1.0, *(rng.random() for _ in range(3))])
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        sent(job, run, low, high)
        run.run_batch()
        if number == 1:
            run.crash()
            run.restart()
        elif number == 2 and job.graph.steps():
            run.rescale(3)
    run.finish()
    assert written(job, run) == wanted
    assert not run.dead_letters()
