"""Emit the profit and the number of sales of each month every two seconds."""

from dataclasses import dataclass

import penstock as ps

FIELDS = 5


@dataclass
class Line:
    """A sale as the server sends it: date,month,category,product,profit."""

    text: str


@dataclass
class Sale:
    """A sale; `profit` in cents."""

    date: str
    month: str
    category: str
    product: str
    profit: int


@dataclass
class Profit:
    """The total profit and the number of some sales."""

    profit: int
    count: int


def parse(line: Line) -> Sale:
    fields = [field.strip() for field in line.text.split(",")]
    if len(fields) != FIELDS:
        raise ValueError(f"a sale has {FIELDS} fields, and this line has {len(fields)}")
    date, month, category, product, profit = fields
    return Sale(date, month, category, product, int(profit))


class SumAndCount(ps.AggregateFunction[Sale, Profit, Profit]):
    """Adds up profits and counts sales."""

    def create_accumulator(self) -> Profit:
        return Profit(0, 0)

    def add(self, value: Sale, accumulator: Profit) -> Profit:
        return Profit(accumulator.profit + value.profit, accumulator.count + 1)

    def get_result(self, accumulator: Profit) -> Profit:
        return accumulator


job = ps.Job("profit-per-month")
lines = job.data_stream("sales", schema=Line)

by_month = lines.map(parse).key_by("month")
windows = by_month.window(ps.TumblingWindows("2s", time="processing"))
windows.aggregate("profit", SumAndCount()).sink_to("profits")
