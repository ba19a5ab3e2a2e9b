"""Tables compared with Flink's: `make table-cases` made the rows in `tests/data/tables` with its table planner."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from property_examples import some_in_test

import penstock as ps
from penstock.testing import JobHarness, table_of

CASES = json.loads((Path(__file__).parents[2] / "data" / "tables" / "flink_cases.json").read_text())
AGGREGATES = {
    "n": ps.Aggregate.count(),
    "n_v": ps.Aggregate.count("v"),
    "sum_v": ps.Aggregate.sum("v"),
    "min_v": ps.Aggregate.min("v"),
    "max_v": ps.Aggregate.max("v"),
    "different": ps.Aggregate.count("v", distinct=True),
    "sum_different": ps.Aggregate.sum("v", distinct=True),
    "mean": ps.Aggregate.avg("v"),
    "above": ps.Aggregate.count(where="v > 1"),
    "late_sum": ps.Aggregate.sum("v", where="at_ms > 50"),
}


def job_of(case: dict[str, Any]) -> ps.Job:
    job = ps.Job("case", key_groups=4)
    schema = "k STRING, v BIGINT, at_ms BIGINT"
    if case["changes"]:
        stream = job.data_stream("c", schema=f"op STRING, {schema}", changelog="op")
    else:
        strategy = ps.Watermarks.bounded("1s")
        stream = job.data_stream("c", schema=schema, event_time="at_ms", watermarks=strategy)
    group = stream.group_by("k")
    if case["kind"] == "aggregate":
        group.aggregate("found", AGGREGATES).sink_to("found", changes="records")
    elif case["kind"] == "counts of counts":
        counts = group.aggregate("counts", {"n": ps.Aggregate.count()})
        counts.group_by("n").aggregate("found", {"groups": ps.Aggregate.count()}).sink_to(
            "found", changes="records"
        )
    elif case["kind"] == "top":
        order = ["v DESC" if case["descending"] else "v", "at_ms"]
        group.top("found", case["count"], order_by=order, rank="place").sink_to("found", changes="records")
    elif case["kind"] == "deduplicate":
        group.deduplicate("found", keep=case["keep"]).sink_to("found", changes="records")
    else:
        aggregates = {
            "n": ps.Aggregate.count(),
            "sum_v": ps.Aggregate.sum("v"),
            "min_v": ps.Aggregate.min("v"),
            "max_v": ps.Aggregate.max("v"),
        }
        range_ = f"{case['range']}ms" if "range" in case else None
        group.over("found", aggregates, rows=case.get("rows"), range=range_).sink_to("found")
    return job


@pytest.mark.parametrize(
    "case", some_in_test(CASES), ids=[f"{n}-{case['kind']}" for n, case in enumerate(CASES)]
)
def test_a_table_has_the_rows_that_flink_has(case: dict[str, Any]) -> None:
    """This holds for any micro-batches, with a restart and a rescale in between."""
    chance = random.Random(len(case["given"]))
    run = JobHarness(job_of(case), parallelism=2, strict=True)
    names = ("op", "k", "v", "at_ms")
    for number, change in enumerate(case["given"]):
        run.send("c", dict(list(zip(names, change, strict=True))[0 if case["changes"] else 1 :]))
        if chance.random() < 0.2:
            run.run_batch()
            run.rescale(1 + number % 3) if chance.random() < 0.3 else run.restart()
    run.finish()
    found = run.output("found")
    if case["kind"] == "over":
        rows = [tuple(getattr(one, name) for name in one.__struct_fields__) for one in found]
    else:
        rows = table_of(found)
    assert sorted(map(list, rows), key=repr) == sorted(case["expected"], key=repr)
