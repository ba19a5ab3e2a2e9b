"""The jobs that are crashed, each with a model that computes the expected output from its inputs."""

from __future__ import annotations

import collections
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import penstock as ps

__all__ = ["JOBS", "CrashJob", "Expected", "Feed"]

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEY_GROUPS = 4
Row = dict[str, Any]
Feed = Mapping[str, Sequence[Sequence[Row]]]
"""Of each stream the records, file by file, in the order of their names."""


@dataclass
class Reading:
    room: str
    value: int
    at: dt.datetime


@dataclass
class Total:
    room: str
    total: int
    count: int


@dataclass
class ByCount:
    count: int
    rooms: int


@dataclass
class Factor:
    room: str
    factor: int


class Count(ps.ProcessFunction):
    """Adds up the values of a room; amounts from commands are kept apart, so that their time of arrival does
    not matter.
    """

    total = ps.ValueState(int)
    count = ps.ValueState(int)
    bonus = ps.ValueState(int)

    @ps.on_command("adjust")
    def adjust(self, more: int, ctx: ps.CommandContext) -> None:
        self.bonus.set((self.bonus.get() or 0) + more)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Total]:
        if record.value < 0:
            raise ValueError("less than nothing")
        self.total.set((self.total.get() or 0) + record.value)
        self.count.set((self.count.get() or 0) + 1)
        yield Total(record.room, self.total.get(), self.count.get())


class CountSides(Count):
    """The same, with every third record also in a side output."""

    side_outputs: ClassVar = {"thirds": Total}

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Total]:
        for total in super().process_record(record, ctx):
            if total.count % 3 == 0:
                ctx.side_output("thirds", total)
            yield total


class CountRooms(ps.ProcessFunction):
    """Counts how many rooms have reached a count."""

    rooms = ps.ValueState(int)

    def process_record(self, record: Total, ctx: ps.Context) -> Iterator[ByCount]:
        self.rooms.set((self.rooms.get() or 0) + 1)
        yield ByCount(record.count, self.rooms.get())


class Remind(ps.ProcessFunction):
    """Emits a minute after each record the sum at that moment."""

    seen = ps.ListState(int)

    def process_record(self, record: Reading, ctx: ps.Context) -> None:
        self.seen.add(record.value)
        ctx.timers.register(record.at + dt.timedelta(minutes=1), domain="event")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Total]:
        yield Total(ctx.key, sum(self.seen.get()), len(list(self.seen.get())))


class Scale(ps.ConnectedProcessFunction):
    """Stores a room's factor from a control stream; values are added up unscaled."""

    factor = ps.ValueState(int)
    total = ps.ValueState(int)

    def process_control(self, record: Factor, ctx: ps.Context) -> None:
        self.factor.set((self.factor.get() or 0) + record.factor)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Total]:
        self.total.set((self.total.get() or 0) + record.value)
        yield Total(record.room, self.total.get(), 0)


class Sum(ps.AggregateFunction[Reading, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Reading, accumulator: int) -> int:
        return accumulator + value.value

    def get_result(self, accumulator: int) -> int:
        return accumulator


@dataclass
class Expected:
    """The expected output.

    `in_order` has the rows of each sink by key in order, `sets` has rows that may come in any order. `state`
    has the values of each state by step and key.
    """

    in_order: dict[str, dict[Any, list[Any]]] = field(default_factory=dict)
    sets: dict[str, list[Any]] = field(default_factory=dict)
    state: dict[str, dict[Any, Any]] = field(default_factory=dict)
    dead_letters: int = 0


Rows = Iterable[Row]


@dataclass(frozen=True)
class CrashJob:
    """A job, its streams and sinks, and the model. `commanded` is the step that takes the command `adjust`."""

    name: str
    make: Callable[[], ps.Job]
    streams: tuple[str, ...]
    sinks: tuple[str, ...]
    expected: Callable[[Feed, Mapping[str, int]], Expected]
    commanded: str | None = None


def _counts() -> ps.Job:
    job = ps.Job("counts", key_groups=KEY_GROUPS)
    readings = job.data_stream("readings", schema=Reading)
    readings.key_by("room").process("count", Count(), output=Total).sink_to("totals")
    return job


def all_rows(feed: Feed, stream: str = "readings") -> Iterator[Row]:
    for rows in feed.get(stream, ()):
        yield from rows


def totals(rows: Rows) -> dict[str, list[tuple[Any, ...]]]:
    """Return the output of the count for each room."""
    found: dict[str, list[tuple[Any, ...]]] = collections.defaultdict(list)
    for row in rows:
        if row["value"] < 0:
            continue
        before = found[row["room"]][-1] if found[row["room"]] else (None, 0, 0)
        found[row["room"]].append((row["room"], before[1] + row["value"], before[2] + 1))
    return dict(found)


def _expect_counts(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    rows = list(all_rows(feed))
    found = totals(rows)
    state: dict[str, dict[Any, Any]] = {
        "count/total": {room: told[-1][1] for room, told in found.items()},
        "count/count": {room: told[-1][2] for room, told in found.items()},
        "count/bonus": dict(adjusted),
    }
    return Expected({"totals": found}, state=state, dead_letters=sum(row["value"] < 0 for row in rows))


def _two_sinks() -> ps.Job:
    job = ps.Job("two-sinks", key_groups=KEY_GROUPS)
    counted = (
        job.data_stream("readings", schema=Reading)
        .key_by("room")
        .process("count", CountSides(), output=Total)
    )
    counted.sink_to("totals")
    counted.side_output("thirds").sink_to("thirds")
    return job


def _expect_two_sinks(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    found = _expect_counts(feed, adjusted)
    thirds = {
        room: [told for told in rows if told[2] % 3 == 0] for room, rows in found.in_order["totals"].items()
    }
    found.in_order["thirds"] = {room: rows for room, rows in thirds.items() if rows}
    return found


def _two_levels() -> ps.Job:
    job = ps.Job("two-levels", key_groups=KEY_GROUPS)
    counted = (
        job.data_stream("readings", schema=Reading).key_by("room").process("count", Count(), output=Total)
    )
    counted.sink_to("totals")
    counted.key_by("count").process("rooms", CountRooms(), output=ByCount).sink_to("by-count")
    return job


def _expect_two_levels(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    found = _expect_counts(feed, adjusted)
    counts = collections.Counter(told[2] for rows in found.in_order["totals"].values() for told in rows)
    found.in_order["by-count"] = {
        count: [(count, n) for n in range(1, rooms + 1)] for count, rooms in counts.items()
    }
    found.state["rooms/rooms"] = dict(counts)
    return found


def _stateless() -> ps.Job:
    job = ps.Job("stateless", key_groups=KEY_GROUPS)
    readings = job.data_stream("readings", schema=Reading)
    readings.map(_doubled, output=Reading).sink_to("doubled")
    return job


def _doubled(record: Reading) -> Reading:
    return Reading(record.room, 2 * record.value, record.at)


def _expect_stateless(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    rows = [(row["room"], 2 * row["value"]) for row in all_rows(feed)]
    return Expected(sets={"doubled": rows})


def _controlled() -> ps.Job:
    job = ps.Job("controlled", key_groups=KEY_GROUPS)
    factors = job.control_stream("factors", schema=Factor).key_by("room")
    readings = job.data_stream("readings", schema=Reading).key_by("room")
    readings.connect(factors).process("scale", Scale(), output=Total).sink_to("totals")
    return job


def _expect_controlled(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    found = {room: [(room, told[1], 0) for told in rows] for room, rows in totals(all_rows(feed)).items()}
    factors: dict[str, int] = collections.defaultdict(int)
    for row in all_rows(feed, "factors"):
        factors[row["room"]] += row["factor"]
    state = {
        "scale/factor": dict(factors),
        "scale/total": {room: rows[-1][1] for room, rows in found.items()},
    }
    return Expected({"totals": found}, state=state)


def _windows() -> ps.Job:
    job = ps.Job("windows", key_groups=KEY_GROUPS)
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.bounded("0s")
    )
    windows = readings.key_by("room").window(ps.TumblingWindows("1m"))
    windows.aggregate("sums", Sum()).sink_to("sums")
    return job


def _expect_windows(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    sums: dict[tuple[str, str], int] = collections.defaultdict(int)
    for row in all_rows(feed):
        at = dt.datetime.fromisoformat(row["at"]).replace(second=0, microsecond=0)
        sums[row["room"], at.isoformat()] += row["value"]
    return Expected(sets={"sums": [(room, at, value) for (room, at), value in sums.items()]})


def _timers() -> ps.Job:
    job = ps.Job("timers", key_groups=KEY_GROUPS)
    readings = job.data_stream(
        "readings", schema=Reading, event_time="at", watermarks=ps.Watermarks.bounded("0s")
    )
    readings.key_by("room").process("remind", Remind(), output=Total).sink_to("reminders")
    return job


def _expect_timers(feed: Feed, adjusted: Mapping[str, int]) -> Expected:
    counts = collections.Counter(row["room"] for row in all_rows(feed))
    # A timer's output depends on the cut, but the number of its calls does not.
    return Expected(sets={"reminders": [room for room, count in counts.items() for _ in range(count)]})


JOBS: dict[str, CrashJob] = {
    job.name: job
    for job in (
        CrashJob("counts", _counts, ("readings",), ("totals",), _expect_counts, "count"),
        CrashJob("two-sinks", _two_sinks, ("readings",), ("totals", "thirds"), _expect_two_sinks, "count"),
        CrashJob(
            "two-levels", _two_levels, ("readings",), ("totals", "by-count"), _expect_two_levels, "count"
        ),
        CrashJob("stateless", _stateless, ("readings",), ("doubled",), _expect_stateless),
        CrashJob("controlled", _controlled, ("readings", "factors"), ("totals",), _expect_controlled),
        CrashJob("windows", _windows, ("readings",), ("sums",), _expect_windows),
        CrashJob("timers", _timers, ("readings",), ("reminders",), _expect_timers),
    )
}
