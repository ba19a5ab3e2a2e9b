"""Late records of bounded runs: none within one micro-batch, and those behind an earlier one's watermark in several."""

from __future__ import annotations

import msgspec
import pytest

import penstock as ps
from penstock.testing import JobHarness

DECLARED = """
CREATE STREAM readings (room STRING NOT NULL, n BIGINT, ms BIGINT NOT NULL, WATERMARK FOR ms AS ms);
CREATE STREAM visits (room STRING NOT NULL, m BIGINT, ms BIGINT NOT NULL, WATERMARK FOR ms AS ms);
"""
STATEMENTS = {
    "windows": (
        "SELECT room, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ms), INTERVAL '1' SECOND)) "
        "GROUP BY room, window_start, window_end"
    ),
    "interval join": (
        "SELECT r.n, v.m FROM readings r JOIN visits v "
        "ON r.room = v.room AND v.ms BETWEEN r.ms AND r.ms + INTERVAL '1' SECOND"
    ),
    "as-of join": (
        "SELECT r.n, v.m FROM readings r LEFT JOIN visits FOR SYSTEM_TIME AS OF r.ms AS v ON r.room = v.room"
    ),
    "moving sums": "SELECT n, SUM(n) OVER (PARTITION BY room ORDER BY ms) AS total FROM readings",
}


def results(statement: str, batches: int, *, backwards: bool) -> list[tuple[object, ...]]:
    """The results of a bounded run of a minute of records that takes so many micro-batches."""
    job = ps.Job("rooms")
    job.sql(f"{DECLARED} INSERT INTO out {statement};")
    run = JobHarness(job, parallelism=2)
    seconds = range(59, -1, -1) if backwards else range(60)
    for part in range(batches):
        for number in seconds[part * 60 // batches : (part + 1) * 60 // batches]:
            run.send("readings", {"room": "ab"[number % 2], "n": number, "ms": number * 1000})
            if "visits" in statement:
                run.send("visits", {"room": "ab"[number % 2], "m": number, "ms": number * 1000 + 1})
        run.run_batch()
    run.finish()
    assert not run.dead_letters()
    return sorted((msgspec.structs.astuple(one) for one in run.output("out")), key=repr)


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_in_one_micro_batch_nothing_is_late(statement: str) -> None:
    """Records that come in the opposite order of their times have the same results."""
    wanted = results(statement, 1, backwards=False)
    assert len(wanted) >= 60
    assert results(statement, 1, backwards=True) == wanted
    assert results(statement, 2, backwards=False) == wanted


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_in_two_what_is_behind_the_first_is_late(statement: str) -> None:
    """As in a stream: the watermark of the first micro-batch has passed it."""
    assert len(results(statement, 2, backwards=True)) < len(results(statement, 1, backwards=False))
