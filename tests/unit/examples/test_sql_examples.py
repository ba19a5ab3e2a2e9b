"""The SQL files of the examples: against plain Python, as one batch and as a stream in parts."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from example_jobs import EXAMPLES, beside

from penstock.jobs.job_loader import load_job
from penstock.testing import JobHarness

Records = dict[str, list[dict[str, Any]]]


def run(file: str, records: Records, parts: int) -> JobHarness:
    """Run a file on parts of the records, with a rescale between them."""
    harness = JobHarness(load_job(str(EXAMPLES / file)).job, parallelism=2)
    for part in range(parts):
        for name, given in records.items():
            low, high = (len(given) * one // parts for one in (part, part + 1))
            harness.send(name, *given[low:high])
        harness.run_batch()
        if part == 0 and parts > 1:
            harness.rescale(3)
    harness.finish()
    assert not harness.dead_letters()
    return harness


PARTS = pytest.mark.parametrize("parts", [1, 4], ids=["batch", "stream"])


@PARTS
def test_top_speeds_are_those_of_a_loop(parts: int) -> None:
    reports = list(beside("car_events", "feed").reports(3, 240))
    found = run("car_events/top_speeds.sql", {"cars": reports}, parts)
    speeds: dict[tuple[int, int], list[int]] = defaultdict(list)
    minutes: dict[tuple[int, int], int] = defaultdict(int)
    for one in reports:
        speeds[one["car"], one["time"] // 10_000].append(one["speed"])
        key = (one["time"] // 60_000, one["car"])
        minutes[key] = max(minutes[key], one["speed"])
    assert {
        (one.car, one.window_start.timestamp()): (one.top_speed, one.mean, one.reports)
        for one in found.output("top_speeds")
    } == {
        (car, at * 10.0): (max(all_), sum(all_) / len(all_), len(all_)) for (car, at), all_ in speeds.items()
    }
    kept = {(one.minute, one.place): (one.car, one.top_speed) for one in found.output("fastest")}
    wanted = {}
    for minute in {minute for minute, _ in minutes}:
        ranked = sorted((-speed, car) for (at, car), speed in minutes.items() if at == minute)
        start = dt.datetime.fromtimestamp(minute * 60, dt.UTC)
        wanted |= {(start, place): (car, -speed) for place, (speed, car) in enumerate(ranked[:2], 1)}
    assert kept == wanted


@PARTS
def test_words_are_counted(parts: int) -> None:
    lines = [
        "It is a truth, a truth universally",
        "acknowledged: that",
        "",
        "a man -- it's TRUE!",
        "Is it a man?",
    ]
    found = run("wordcount/wordcount.sql", {"lines": [{"text": line} for line in lines]}, parts)
    counts = {one.word: one.count for one in found.output("counts")}
    assert counts == Counter(word for line in lines for word in re.findall(r"\w+", line.lower()))


@PARTS
def test_payments_within_an_hour_are_matched(parts: int) -> None:
    shop = beside("shop_joins", "feed")
    given = shop.shop()
    found = run("shop_joins/payments.sql", {name: given[name] for name in ("orders", "payments")}, parts)
    payments = {one["order_id"]: one for one in given["payments"]}
    waited = {
        one["id"]: payments[one["id"]]["at"] - one["at"] for one in given["orders"] if one["id"] in payments
    }
    paid = {order: ms for order, ms in waited.items() if ms <= shop.HOUR_MS}
    assert 0 < len(paid) < len(waited)
    assert {one.id: one.waited_ms for one in found.output("paid")} == paid
    assert sorted(one.id for one in found.output("unpaid")) == sorted(
        one["id"] for one in given["orders"] if one["id"] not in paid
    )


@PARTS
def test_clicks_have_the_price_of_their_time(parts: int) -> None:
    given = beside("shop_joins", "feed").shop()
    found = run("shop_joins/clicks.sql", {name: given[name] for name in ("clicks", "campaigns")}, parts)
    wanted = {}
    for click in given["clicks"]:
        prices = [
            one["price"]
            for one in given["campaigns"]
            if one["name"] == click["campaign"] and one["since"] <= click["at"]
        ]
        wanted[click["id"]] = prices[-1] if prices else None
    assert {one.id: one.price for one in found.output("charged")} == wanted
    assert None in wanted.values()
