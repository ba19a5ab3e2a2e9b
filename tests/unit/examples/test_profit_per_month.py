"""The profit per month: sums and counts are right, and invalid lines are dead letters."""

from __future__ import annotations

import datetime as dt
from collections import Counter

from example_jobs import beside, loaded

from penstock.testing.batch_runner import NOW, BatchRunner

JOB, profit_job = loaded("profit_per_month", "profit_job")
sales_server = beside("profit_per_month", "sales_server")

TWO_SECONDS = dt.timedelta(seconds=2)


def test_each_two_seconds_give_the_profit_of_their_months() -> None:
    """They are compared with sums over the lines; every line is in exactly one window, or a dead letter."""
    job = BatchRunner(JOB, parallelism=2)
    lines = list(sales_server.sales(400))
    wanted: dict[tuple[str, dt.datetime], Counter[str]] = {}
    found, letters = [], []
    for number in range(0, len(lines), 25):
        part = lines[number : number + 25]
        job.now = NOW + number * dt.timedelta(milliseconds=20)
        result = job.run({"sales": [("", [profit_job.Line(line) for line in part])]})
        assert all(one.window_end <= job.now for one in result.output("profits"))
        found += result.output("profits")
        letters += result.dead_letters
        start = NOW + (job.now - NOW) // TWO_SECONDS * TWO_SECONDS
        for line in part:
            fields = line.split(",")
            if len(fields) == 5 and fields[4].isdigit():
                told = wanted.setdefault((fields[1], start), Counter())
                told.update(profit=int(fields[4]), count=1)
    job.now += TWO_SECONDS
    found += job.run({}).output("profits")
    told = {(one.month, one.window_start): Counter(profit=one.profit, count=one.count) for one in found}
    assert told == wanted
    assert len(found) == len(wanted) > 20
    assert {one.window_end - one.window_start for one in found} == {TWO_SECONDS}
    assert sum(one.count for one in found) == 400
    assert len(letters) == len(lines) - 400 == 4


def test_a_dead_letter_has_the_line_and_what_is_wrong_with_it() -> None:
    job = BatchRunner(JOB)
    result = job.run({"sales": [("", [profit_job.Line(line) for line in sales_server.BAD_LINES])]})
    reasons = [letter.reason for letter in result.dead_letters]
    assert "a sale has 5 fields, and this line has 1" in reasons[0]
    assert "invalid literal for int" in reasons[1]
    assert "this line has 4" in reasons[2]


def test_the_server_sends_the_same_sales_each_time() -> None:
    assert list(sales_server.sales(200)) == list(sales_server.sales(200))
    assert next(sales_server.sales(1)).count(",") == 4
