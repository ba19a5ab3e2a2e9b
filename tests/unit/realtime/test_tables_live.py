"""Tables in real time: through random crashes, they have the rows of a batch query after each interval."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from live_runner import LiveRunner

import penstock as ps

EVENTS: Final = ("nothing", "lost commit", "failing sink", "lost task", "new workers", "new driver")


def cars_job() -> ps.Job:
    """Return a job with totals of totals, first rows, and rows with running aggregates."""
    job = ps.Job("cars", key_groups=8)
    cars = job.data_stream(
        "cars", schema="id INT, town INT, price INT, op STRING", changelog=ps.Upserts("id", kind="op")
    )
    towns = cars.group_by("town").aggregate(
        "towns", {"cars": ps.Aggregate.count(), "dearest": ps.Aggregate.max("price")}
    )
    towns.sink_to("towns", changes="records")
    towns.group_by().aggregate("all", {"cars": ps.Aggregate.sum("cars")}).sink_to("all", changes="records")
    cars.group_by("town").top("top", 2, order_by=["price", "id"], rank="place").sink_to(
        "top", changes="records"
    )
    prices = job.data_stream(
        "prices",
        schema="town INT, price INT, at BIGINT",
        event_time="at",
        watermarks=ps.Watermarks.bounded("5ms"),
    )
    prices.group_by("town").over("over", {"sum": ps.Aggregate.sum("price")}, rows=2).sink_to("over")
    return job


class Lives:
    """A job that runs intervals, with a random failure before each."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random: Final = random.Random(seed)
        self.live: Final = LiveRunner(cars_job(), folder, self._random.randint(1, 3))
        self.cars: Final[dict[int, tuple[int, int]]] = {}
        self.prices: Final[list[tuple[int, int, int]]] = []
        self.outputs: Final[dict[str, list[Any]]] = {name: [] for name in ("towns", "all", "top", "over")}
        self.happened: Final[list[str]] = []

    def run(self, intervals: int) -> None:
        """Run some intervals, the last of which release all prices."""
        with self.live:
            for _ in range(intervals):
                event = self._random.choice(EVENTS)
                self.happened.append(event)
                self._happen(event)
                self._commit(self._send)
                # A repeated interval reads exactly what it read before.
                self._commit(lambda: None)
                self.check_tables()
            self._commit(lambda: self._price(100, 0, 1_000_000))
            self._commit(lambda: None)

    def _send(self) -> None:
        for _ in range(self._random.randrange(12)):
            number, town, price = (self._random.randrange(top) for top in (9, 3, 7))
            gone = self._random.random() < 0.3
            self.live.send("cars", {"id": number, "town": town, "price": price, "op": "-D" if gone else "+U"})
            if gone:
                self.cars.pop(number, None)
            else:
                self.cars[number] = town, price
            at = 3 * len(self.prices) + self._random.randrange(4)
            self._price(town, price, at)

    def _price(self, town: int, price: int, at: int) -> None:
        self.live.send("prices", {"town": town, "price": price, "at": at})
        self.prices.append((town, price, at))

    def _happen(self, event: str) -> None:
        live = self.live
        if event == "lost commit":
            live.run(self._send, commits=False)
        elif event == "failing sink":
            sink = self._random.choice(list(self.outputs))
            live.sinks[sink][0].fails_at_finish = True
            self._fail(self._send, sink)
            live.sinks[sink][0].fails_at_finish = False
        elif event == "lost task":
            self._fail(lambda: (self._send(), live.lose_task()), None)
        if event in ("new driver", "lost commit") and self._random.random() < 0.5:
            live.__exit__(None, None, None)
            live.__enter__()
        if event == "new workers" or self._random.random() < 0.3:
            live.forget()

    def _fail(self, during: Callable[[], Any], sink: str | None) -> None:
        try:
            outcome = self.live.run(during)
        except ExceptionGroup:
            return
        # A sink without output does not fail.
        assert sink is not None
        assert outcome.output(sink) == []
        self._take(outcome)

    def _commit(self, during: Callable[[], None]) -> None:
        self._take(self.live.run(during))

    def _take(self, outcome: Any) -> None:
        for name, records in self.outputs.items():
            records += outcome.output(name)
        assert outcome.dead_letters == []

    def check_tables(self) -> None:
        """Compare the tables of cars with those of a batch query."""
        towns: dict[int, list[tuple[int, int]]] = {}
        for number, (town, price) in self.cars.items():
            towns.setdefault(town, []).append((price, number))
        want = {town: (town, len(found), max(found)[0]) for town, found in towns.items()}
        assert self._table("towns") == Counter(want.values()), self.happened
        count = sum(len(found) for found in towns.values())
        assert self._table("all") == Counter([(count,)] if count else []), self.happened
        first = [
            (number, town, price, place)
            for town, found in towns.items()
            for place, (price, number) in enumerate(sorted(found)[:2], 1)
        ]
        assert self._table("top") == Counter(first), self.happened

    def check_prices(self) -> None:
        """Compare the sums with those of a batch query: each price once, in the order of its time."""
        found = sorted(
            (one.town, one.at, one.price, one.sum) for one in self.outputs["over"] if one.town < 100
        )
        by_town: dict[int, list[tuple[int, int]]] = {}
        for town, price, at in self.prices:
            by_town.setdefault(town, []).append((at, price))
        by_town.pop(100)
        want = []
        for town, prices in by_town.items():
            prices.sort()
            for number, (at, price) in enumerate(prices):
                want.append((town, at, price, sum(one for _, one in prices[max(0, number - 2) : number + 1])))
        assert found == sorted(want), self.happened

    def _table(self, sink: str) -> Counter[tuple[Any, ...]]:
        table: Counter[tuple[Any, ...]] = Counter()
        for record in self.outputs[sink]:
            *row, kind = (getattr(record, name) for name in record.__struct_fields__)
            table[tuple(row)] += 1 if kind.value in ("+I", "+U") else -1
        assert min(table.values(), default=0) >= 0, self.happened
        return +table


def check(folder: Path, seed: int, intervals: int) -> None:
    lives = Lives(folder, seed)
    lives.run(intervals)
    lives.check_prices()


@pytest.mark.parametrize("seed", range(3))
def test_tables_through_random_crashes(tmp_path: Path, seed: int) -> None:
    """Each change arrives once, and only existing rows are removed."""
    check(tmp_path, seed, 4)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 200))
def test_tables_through_many_random_crashes(tmp_path: Path, seed: int) -> None:
    """The same for 100 schedules of ten intervals."""
    check(tmp_path, seed, 10)
