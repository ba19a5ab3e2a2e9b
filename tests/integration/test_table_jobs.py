"""Tables on Spark: stopped, rescaled and continued in real time, they equal a batch query."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from integration_support import read_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.savepoints.rescaling import rescale

SINKS = ("towns", "sizes", "dearest", "newest", "first", "smooth")


def cars_job() -> ps.Job:
    """Return a job with every table operator, on a changelog and on appended records."""
    job = ps.Job("cars", key_groups=8)
    cars = job.data_stream(
        "cars", schema="id INT, town STRING, price INT, op STRING", changelog=ps.Upserts("id", kind="op")
    )
    towns = cars.group_by("town").aggregate(
        "towns",
        {
            "cars": ps.Aggregate.count(),
            "total": ps.Aggregate.sum("price"),
            "cheapest": ps.Aggregate.min("price"),
            "prices": ps.Aggregate.count("price", distinct=True),
        },
    )
    towns.sink_to("towns", changes="upserts")
    towns.group_by("cars").aggregate("sizes", {"towns": ps.Aggregate.count()}).sink_to(
        "sizes", changes="records"
    )
    cars.group_by("town").top("dearest", 2, order_by=["price DESC"], rank="place").sink_to(
        "dearest", changes="records"
    )
    prices = job.data_stream(
        "prices",
        schema="town STRING, price INT, at BIGINT",
        event_time="at",
        watermarks=ps.Watermarks.bounded("5ms"),
    )
    prices.group_by("town").deduplicate("newest", keep="last").sink_to("newest", changes="records")
    prices.group_by("town").deduplicate("first", by="arrival").sink_to("first")
    prices.group_by("town").over("smooth", {"total": ps.Aggregate.sum("price")}, range="10ms").sink_to(
        "smooth"
    )
    return job


def cars_of(part: int) -> list[dict[str, Any]]:
    """Return new cars, changed cars, and deleted cars."""
    new = [{"id": 40 * part + n, "town": f"t{n % 5}", "price": n * 7 % 11, "op": "+I"} for n in range(40)]
    moved = [{"id": n, "town": f"t{(n + part) % 5}", "price": n, "op": "+U"} for n in range(0, 40 * part, 3)]
    gone = [{"id": n, "town": "t0", "price": 0, "op": "-D"} for n in range(0, 40 * part, 7)]
    return new + moved + gone


def prices_of(part: int) -> list[dict[str, Any]]:
    """Return prices whose times are out of order by less than the watermark allows."""
    return [{"town": f"t{n % 3}", "price": n * 5 % 13, "at": 30 * part + (n ^ 1)} for n in range(30)]


def table_of(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the table that results from changes."""
    table: Counter[tuple[Any, ...]] = Counter()
    for change in changes:
        kind = change.pop("_change")
        table[tuple(change.values())] += 1 if kind in ("+I", "+U") else -1
    assert min(table.values()) >= 0
    return sorted((+table).elements())


def expected() -> dict[str, list[tuple[Any, ...]]]:
    cars: dict[int, dict[str, Any]] = {}
    for part in range(4):
        for change in cars_of(part):
            if change["op"] == "-D":
                cars.pop(change["id"], None)
            else:
                cars[change["id"]] = change
    by_town = defaultdict(list)
    for car in cars.values():
        by_town[car["town"]].append(car)
    towns = [
        (town, len(found), sum(prices := [car["price"] for car in found]), min(prices), len(set(prices)))
        for town, found in sorted(by_town.items())
    ]
    prices_sent = sorted((one for part in range(4) for one in prices_of(part)), key=lambda one: one["at"])
    newest = {one["town"]: tuple(one.values()) for one in prices_sent}
    return {
        "towns": towns,
        "sizes": sorted(Counter(town[1] for town in towns).items()),
        "dearest": sorted(
            (car["id"], town, car["price"], place)
            for town, found in by_town.items()
            for place, car in enumerate(sorted(found, key=lambda car: (-car["price"], car["id"]))[:2], 1)
        ),
        "newest": sorted(newest.values()),
        "smooth": sorted(
            (
                *one.values(),
                sum(
                    other["price"]
                    for other in prices_sent
                    if other["town"] == one["town"] and one["at"] - 10 <= other["at"] <= one["at"]
                ),
            )
            for one in prices_sent
        ),
    }


def test_tables_over_restarts_a_rescale_and_real_time(spark: SparkSession, tmp_path: Path) -> None:
    """All operators run first in micro-batches, then with another number of tasks in real time, to the end of
    time.
    """
    bindings = {name: f"jsonl:{tmp_path / name}" for name in SINKS}
    checkpoint = tmp_path / "checkpoint"
    modes: list[dict[str, Any]] = [{"parallelism": 3}, {"checkpoint_interval_ms": 500}]
    for run_number, mode in enumerate(modes):
        with cars_job().start(bindings, checkpoint=checkpoint, **mode) as run:
            for part in (2 * run_number, 2 * run_number + 1):
                run.send("cars", cars_of(part))
                run.send("prices", prices_of(part))
                run.await_batch()
            if run_number:
                run.send("prices", {"town": "end", "price": 0, "at": 10_000})
                run.await_batch()
            result = run.stop(drain=run_number == 1)
        assert result.dead_letters() == []
        if not run_number:
            rescale(spark, Checkpoint(checkpoint), 2)
    found = {name: read_lines(tmp_path / name) for name in SINKS}
    want = expected()
    latest = {change["town"]: change for change in found["towns"]}
    towns = [change for change in latest.values() if change["_change"] == "+U"]
    assert table_of(towns) == want["towns"]
    for name in ("sizes", "dearest"):
        assert table_of(found[name]) == want[name], name
    assert [row for row in table_of(found["newest"]) if row[0] != "end"] == want["newest"]
    assert sorted(one["town"] for one in found["first"]) == ["end", "t0", "t1", "t2"]
    smooth = sorted(tuple(one.values()) for one in found["smooth"] if one["town"] != "end")
    assert smooth == want["smooth"]
