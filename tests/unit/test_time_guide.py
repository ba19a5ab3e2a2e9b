"""The guide of time: what docs/time.md shows runs and does what the page says."""

from __future__ import annotations

import datetime as dt
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from encoded_commands import command_to, commands

import penstock as ps
from penstock.control.receipts import StepTime, slowest_time
from penstock.errors import JobDefinitionError
from penstock.operators.watermarks import WatermarkUpdate
from penstock.snapshots.table_formats import decode, encode
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner
from penstock.testing.memory_entries import MemoryEntries
from penstock.testing.saved_states import rescale_runner

GUIDE = Path(__file__).parents[2] / "docs" / "time.md"
GUARANTEES = GUIDE.with_name("guarantees.md")
TESTS = Path(__file__).parents[1]
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def guide() -> Iterator[dict[str, Any]]:
    """The names that the guide's Python makes, block after block in one module."""
    module = types.ModuleType("time_guide")
    sys.modules["time_guide"] = module
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(GUIDE), "exec"), module.__dict__)
    yield module.__dict__
    del sys.modules["time_guide"]


class Shop:
    """The job of the guide at work. A visit is (visitor, page, seconds past noon) and perhaps how long it was."""

    def __init__(self, guide: dict[str, Any], job: ps.Job | None = None, **options: Any) -> None:
        self._guide = guide
        self.job = BatchRunner(job or guide["job"], **options)

    def run(self, *visits: tuple[Any, ...], ends: bool = False, partition: str = "p") -> BatchOutcome:
        made = [
            self._guide["Visit"](visitor, page, NOON + dt.timedelta(seconds=seconds), *more)
            for visitor, page, seconds, *more in visits
        ]
        result = self.job.run({"visits": [(partition, made)]} if made else {}, ends=ends)
        assert not result.dead_letters
        return result

    def command(self, kind: str, payload: Any = None, **more: Any) -> Any:
        named = {"id": f"{kind} {payload} {more}", **more}
        return self.job.run(commands(command_to(None, kind, payload, **named))).receipts[-1]


def counted(result: BatchOutcome, sink: str = "views") -> list[tuple[str, int, int]]:
    """Page, start in seconds past noon, and value of windows."""
    return sorted(
        (one.page, int((one.window_start - NOON).total_seconds()), one.value) for one in result.output(sink)
    )


def texts(result: BatchOutcome, sink: str) -> list[tuple[str, str]]:
    return [(told.page, told.text) for told in result.output(sink)]


def described(guide: dict[str, Any], **stream: Any) -> tuple[ps.Job, ps.KeyedStream]:
    """A job of one stream, keyed by page."""
    job = ps.Job("other", key_groups=2)
    return job, job.data_stream("visits", schema=guide["Visit"], **stream).key_by("page")


def test_the_window_of_the_guide_counts(guide: dict[str, Any]) -> None:
    """It fires behind its end and five seconds, and once more at a late record; a later one leaves by the side."""
    shop = Shop(guide, parallelism=2)
    assert not counted(shop.run((1, "tea", 0), (2, "tea", 59), (1, "jam", 60)))
    first = shop.run((1, "jam", 65))
    assert counted(first) == [("tea", 0, 2)]
    (record,) = first.output("views")
    assert (record.window_start, record.window_end) == (NOON, NOON + dt.timedelta(minutes=1))
    assert counted(shop.run((3, "tea", 5))) == [("tea", 0, 3)]
    assert counted(shop.run((1, "jam", 95))) == []
    late = shop.run((4, "tea", 6))
    assert not late.output("views")
    assert [visit.visitor for visit in late.output("late-visits")] == [4]
    assert late.counts("late")["views"] == 1


def test_the_job_of_the_guide_gives_its_streams_their_time(guide: dict[str, Any]) -> None:
    """Those that have the field and do not say otherwise."""
    five_seconds, a_day = ps.Watermarks.bounded("5s"), ps.Watermarks.bounded("1d")
    assert {node.name: (node.time, node.watermarks) for node in guide["office"].graph.sources()} == {
        "orders": ("at", five_seconds),
        "returns": ("at", a_day),
        "letters": (None, None),
        "prices": (None, None),
    }


def test_what_is_late_is_judged_by_the_micro_batches_before(guide: dict[str, Any]) -> None:
    """Not by the records of its own, in whatever order these come."""
    shop = Shop(guide)
    result = shop.run((1, "jam", 3600), (1, "tea", 0))
    assert ("tea", 0, 1) in counted(result)
    assert not result.output("late-visits")
    assert len(shop.run((2, "tea", 1)).output("late-visits")) == 1


def test_the_page_of_the_guide_shows_a_record_of_its_window(guide: dict[str, Any]) -> None:
    result = Shop(guide)
    result.run((1, "tea", 0), (2, "tea", 59))
    (record,) = result.run(ends=True).output("views")
    shown = re.search(r'^(\{"page": "tea".*)$', GUIDE.read_text(), re.MULTILINE)
    assert shown is not None
    assert msgspec.json.decode(shown[1]) == msgspec.json.decode(
        msgspec.json.encode({name: getattr(record, name) for name in guide["views"].record_type.field_names})
    )


def test_the_trace_of_the_guide_tells_what_holds_time(guide: dict[str, Any]) -> None:
    """Of two partitions that which is behind; and of a step behind another one that step."""
    shop = Shop(guide, parallelism=1, partitions={"visits": ("0", "1")})
    steps = msgspec.json.decode(shop.command("trace").details)
    assert [(one["watermark"], one["held_by"]) for one in steps if one["step"] == "views"] == [
        (None, "visits/0")
    ]
    shop.run((1, "tea", 60), partition="0")
    shop.run((1, "tea", 0), partition="1")
    steps = {one["step"]: one for one in msgspec.json.decode(shop.command("trace", issued_by="ann").details)}
    shown = re.search(r'^(\[\{"step": "views".*)$', GUIDE.read_text(), re.MULTILINE)
    assert shown is not None
    (line,) = msgspec.json.decode(shown[1])
    about = ("step", "settings", "watermark", "held_by")
    assert {name: steps["views"][name] for name in about} == {name: line[name] for name in about}
    assert sorted(steps["views"]) == sorted(line)
    assert steps["busiest"]["held_by"] == "counts"
    shop.job.now += dt.timedelta(minutes=1)
    steps = {one["step"]: one for one in msgspec.json.decode(shop.command("trace", version=2).details)}
    assert (steps["views"]["watermark"], steps["views"]["held_by"]) == (
        "2026-11-21T12:00:54.999000Z",
        None,
    )


def test_the_union_of_the_guide_goes_by_the_stream_that_is_behind(guide: dict[str, Any]) -> None:
    """Until it is idle; its windows have the visits of both."""
    job = BatchRunner(guide["job"], parallelism=2)

    def counts(web: int | None = None, app: int | None = None) -> list[tuple[str, int, int]]:
        visits = {
            name: [("p", [guide["Visit"](1, "tea", NOON + dt.timedelta(seconds=at))])]
            for name, at in (("visits", web), ("app-visits", app))
            if at is not None
        }
        return counted(job.run(visits), "all-views")

    assert counts(web=0, app=10) == counts(web=70) == []
    assert counts(app=66) == [("tea", 0, 2)]
    assert counts(app=130) == []
    job.now += dt.timedelta(minutes=1)
    assert counts(app=131) == [("tea", 60, 2)]


def test_the_generator_of_the_guide_tells_watermarks(guide: dict[str, Any]) -> None:
    """By its marks, and an hour behind the newest record."""
    job, pages = described(guide, event_time="at", watermarks=guide["marked"])
    pages.window(ps.TumblingWindows("1m")).aggregate("views", guide["Views"]()).sink_to("views")
    shop = Shop(guide, job)
    assert counted(shop.run((1, "tea", 0), (1, "mark", 60))) == [("tea", 0, 1)]
    assert counted(shop.run((1, "tea", 3_719))) == []
    assert counted(shop.run((1, "tea", 3_720))) == [("mark", 60, 1)]


def test_the_timer_of_the_guide_is_called_ten_minutes_after_the_last_visit(guide: dict[str, Any]) -> None:
    """Once, and behind the data of the micro-batch."""
    shop = Shop(guide)
    shop.run((1, "tea", 0), (2, "jam", 10), (1, "jam", 300))
    assert not texts(shop.run((3, "tea", 614)), "left")
    assert texts(shop.run((3, "tea", 616)), "left") == [("jam", "2 left")]
    last = shop.run(ends=True)
    assert texts(last, "left") == [("jam", "1 left"), ("tea", "3 left")]
    assert last.output("left")[0].at == NOON + dt.timedelta(minutes=15)


def test_the_functions_of_the_guide_make_what_they_say(guide: dict[str, Any]) -> None:
    """The longest visit of a session; numbers of firings and windows, and crowds aside."""
    shop = Shop(guide)
    shop.run((1, "tea", 0, 5.0), (2, "tea", 30, 9.0), (3, "tea", 59, 1.0))
    first = shop.run((1, "tea", 66))
    assert texts(first, "firings") == texts(first, "crowds") == [("tea", "window 1, firing 1: 3 visits")]
    again = shop.run((4, "tea", 1, 8.0))
    assert texts(again, "firings") == [("tea", "window 1, firing 2: 4 visits")]
    last = shop.run(ends=True)
    assert texts(last, "firings") == [("tea", "window 2, firing 1: 1 visits")]
    assert [visit.seconds for visit in last.output("longest")] == [9.0]


def test_windows_behind_windows_go_by_their_last_moment(guide: dict[str, Any]) -> None:
    """What fires in a micro-batch is in time there, and fires in its turn."""
    shop = Shop(guide, parallelism=2)
    shop.run((1, "tea", 0), (2, "jam", 5), (1, "jam", 59), (1, "jam", 61))
    result = shop.run((1, "tea", 130))
    assert counted(result, "busiest") == [("jam", 0, 2.0), ("jam", 60, 1.0)]
    assert not result.counts("late")


def test_another_field_of_the_guide_counts(guide: dict[str, Any]) -> None:
    """The end of a visit in place of its beginning, at the watermarks of the beginnings."""
    shop = Shop(guide, parallelism=2)
    result = shop.run((1, "tea", 0, 70.0), (2, "tea", 50, 5.0), (3, "jam", 66))
    assert counted(result, "leavings") == [("tea", 0, 1.0)]
    assert counted(shop.run(ends=True), "leavings") == [("jam", 60, 1.0), ("tea", 60, 1.0)]


def test_the_parts_of_the_guide_do_what_they_say(guide: dict[str, Any]) -> None:
    """A trigger for long visits, an evictor that leaves one of each visitor, calendar months."""
    shop = Shop(guide)
    long = shop.run((1, "tea", 0, 70.0), (2, "tea", 10, 5.0), (1, "tea", 20, 5.0))
    assert counted(long, "long-visits") == [("tea", 0, 1)]
    shown = re.search(r"--kind set --target long-visits --json '(.*)' --wait", GUIDE.read_text())
    assert shown is not None
    receipt = shop.command("set", msgspec.json.decode(shown[1]), target={"step": "long-visits"})
    assert receipt.status == "APPLIED", receipt.reason
    assert counted(shop.run((2, "tea", 30, 5.0)), "long-visits") == [("tea", 0, 4)]
    last = shop.run(ends=True)
    assert counted(last, "long-visits") == [("tea", 0, 4)]
    (month,) = last.output("visitors")
    assert (month.window_start.date(), month.window_end.date(), month.value) == (
        dt.date(2026, 11, 1),
        dt.date(2026, 12, 1),
        2,
    )


def test_the_assigner_of_the_guide_has_a_setting(guide: dict[str, Any]) -> None:
    """Windows that are open when it changes go on; one that cannot be is refused."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    pages.window(guide["Shifts"]("1h")).aggregate("views", guide["Views"]()).sink_to("views")
    shop = Shop(guide, job)
    shop.run((1, "tea", 600))
    target = {"step": "views"}
    assert shop.command("set", {"length": "0s"}, target=target).status == "REJECTED"
    receipt = shop.command("set", {"length": "7h"}, target=target)
    assert receipt.status == "APPLIED", receipt.reason
    shop.run((2, "tea", 660), (1, "jam", 600))
    # Noon is in the second shift of seven hours, in which the open window of tea is; both of them take its visit.
    last = sorted(
        (one.page, one.window_start.hour, one.window_end.hour, one.value)
        for one in shop.run((2, "jam", 10 * 3600), ends=True).output("views")
    )
    assert last == [("jam", 7, 14, 1), ("jam", 21, 0, 1), ("tea", 7, 14, 1), ("tea", 12, 13, 2)]


def delta(one: Any, other: Any) -> float:
    return abs(one.seconds - other.seconds)


@pytest.mark.parametrize(
    ("assigner", "trigger", "evictor", "settings"),
    [
        (
            ps.TumblingWindows("1m"),
            ps.CountTrigger(3),
            ps.CountEvictor(2),
            ["size", "trigger_count", "evictor_count", "allowed_lateness"],
        ),
        (
            ps.SlidingWindows("2m", "1m"),
            ps.PurgingTrigger(ps.DeltaTrigger(3, delta)),
            ps.DeltaEvictor(2, delta),
            ["size", "slide", "trigger_threshold", "evictor_threshold", "allowed_lateness"],
        ),
        (
            ps.CumulativeWindows(step="1m", size="2m"),
            ps.ContinuousEventTimeTrigger("10s"),
            ps.TimeEvictor("5s"),
            ["step", "size", "trigger_interval", "evictor_keep", "allowed_lateness"],
        ),
        (ps.SessionWindows("1m"), None, None, ["gap", "allowed_lateness"]),
        (ps.SessionWindows(lambda visit: "1m"), None, None, ["allowed_lateness"]),
        (ps.CountWindows(3, 2), None, None, ["count", "slide"]),
        (
            ps.TumblingWindows(dt.timedelta(minutes=1), time="processing"),
            ps.ContinuousProcessingTimeTrigger("1m"),
            None,
            ["size", "trigger_interval"],
        ),
    ],
)
def test_every_parameter_is_a_setting(
    guide: dict[str, Any],
    assigner: ps.WindowAssigner,
    trigger: ps.Trigger | None,
    evictor: ps.Evictor | None,
    settings: list[str],
) -> None:
    """By the name that the page has; a value that cannot be is refused, and so is one that holds from a time on."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    windows = pages.window(assigner)
    windows = windows if trigger is None else windows.trigger(trigger)
    windows = windows if evictor is None else windows.evictor(evictor)
    windows.aggregate("views", guide["Views"]()).sink_to("views")
    shop = Shop(guide, job)
    (step,) = msgspec.json.decode(shop.command("trace").details)
    assert sorted(step["settings"]) == sorted(settings)
    page = GUIDE.read_text()
    for name in settings:
        assert f"`{name}`" in page
        good: Any = 7 if name.endswith("count") or (name == "slide" and "count" in settings) else "7s"
        good = 2.5 if name.endswith("threshold") else good
        target = {"step": "views"}
        assert shop.command("set", {name: good}, target=target).status == "APPLIED"
        for bad in (None, "soon") if name.endswith("threshold") else (None, -1, "soon"):
            assert shop.command("set", {name: bad}, target=target).status == "REJECTED"
        timed = shop.command("set", {name: good}, target=target, effective_at="2026-11-21T12:00:00Z")
        assert (timed.status, "has no history" in timed.reason) == ("REJECTED", True)


def test_the_command_of_the_guide_changes_windows(guide: dict[str, Any]) -> None:
    """From the next window on, for all keys."""
    shop = Shop(guide, parallelism=2)
    shop.run((1, "tea", 5))
    shown = re.search(r"--kind set --target views --json '(.*)' --wait", GUIDE.read_text())
    assert shown is not None
    receipt = shop.command("set", msgspec.json.decode(shown[1]), target={"step": "views"})
    assert receipt.status == "APPLIED", receipt.reason
    assert counted(shop.run((1, "tea", 15), (1, "tea", 75), (1, "jam", 15))) == [
        ("jam", 10, 1),
        ("tea", 0, 2),
    ]
    assert counted(shop.run(ends=True)) == [("tea", 70, 1)]


def test_results_of_windows_are_stamped(guide: dict[str, Any]) -> None:
    """With the version of the settings under which they fired."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    views = pages.window(ps.TumblingWindows("1m")).aggregate("views", guide["Views"]())
    views.stamp_control_version().sink_to("views")
    shop = Shop(guide, job)
    shop.run((1, "tea", 0), (1, "jam", 1))
    shop.command("set", {"size": "2m"}, target={"step": "views"}, version=5)
    assert [one.control_version for one in shop.run(ends=True).output("views")] == [5, 5]


def test_results_as_columns_are_stamped(guide: dict[str, Any]) -> None:
    """As others are; and another aggregate counts from the next firing on."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    pages.window(ps.TumblingWindows("1m")).mean("means", "seconds").stamp_control_version().sink_to("means")
    shop = Shop(guide, job)
    shop.run((1, "tea", 0, 2.0), (1, "tea", 1, 4.0))
    receipt = shop.command("set", {"aggregate": "max"}, target={"step": "means"}, version=5)
    assert receipt.status == "APPLIED", receipt.reason
    assert shop.command("set", {"aggregate": "median"}, target={"step": "means"}).status == "REJECTED"
    (found,) = shop.run(ends=True).output("means")
    assert (found.value, found.control_version) == (4.0, 5)


def test_a_count_of_records_cannot_become_their_sum(guide: dict[str, Any]) -> None:
    """There is no field to add up."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    pages.window(ps.TumblingWindows("1m")).count("counts").sink_to("counts")
    receipt = Shop(guide, job).command("set", {"aggregate": "sum"}, target={"step": "counts"})
    assert (receipt.status, "has no setting 'aggregate'" in receipt.reason) == ("REJECTED", True)


def by_clock(guide: dict[str, Any]) -> Shop:
    job, pages = described(guide)
    windows = pages.window(ps.TumblingWindows("1s", time="processing"))
    windows.aggregate("views", guide["Views"]()).sink_to("views")
    return Shop(guide, job)


def test_windows_by_the_clock_fire_behind_their_last_millisecond(guide: dict[str, Any]) -> None:
    """A record that comes within it is in the window."""
    shop = by_clock(guide)
    shop.run((1, "tea", 0))
    shop.job.now = NOW + dt.timedelta(milliseconds=999)
    assert not shop.run((2, "tea", 0)).output("views")
    shop.job.now = NOW + dt.timedelta(milliseconds=1_000)
    assert [one.value for one in shop.run().output("views")] == [2]


def test_windows_by_the_clock_are_done_when_time_ends(guide: dict[str, Any]) -> None:
    """Once, so that a later micro-batch has nothing of them."""
    shop = by_clock(guide)
    shop.run((1, "tea", 0))
    assert [one.value for one in shop.run(ends=True).output("views")] == [1]
    shop.job.now = NOW + dt.timedelta(hours=1)
    assert not shop.run().output("views")


def test_all_records_share_the_windows_of_window_all(guide: dict[str, Any]) -> None:
    """Under the key 0."""
    job = ps.Job("other", key_groups=4)
    visits = job.data_stream("visits", schema=guide["Visit"], event_time=ps.INGESTION_TIME)
    visits.window_all(ps.TumblingWindows("1m")).aggregate("views", guide["Views"]()).sink_to("views")
    shop = Shop(guide, job, parallelism=3)
    shop.run((1, "tea", 0), (2, "jam", 0))
    (record,) = shop.run(ends=True).output("views")
    assert (record.key, record.window_start, record.value) == (0, NOW, 2)


def test_a_global_window_fires_when_time_ends(guide: dict[str, Any]) -> None:
    """Its bounds are null. Intervals of event time need watermarks; the end of time comes without them as well."""
    for trigger in (ps.EventTimeTrigger(), ps.PurgingTrigger(ps.ContinuousEventTimeTrigger("1h"))):
        job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.none())
        windows = pages.window(ps.GlobalWindows()).trigger(trigger)
        windows.aggregate("views", guide["Views"]()).sink_to("views")
        shop = Shop(guide, job)
        shop.run((1, "tea", 0))
        found = shop.run(ends=True).output("views")
        assert (found[-1].window_start, found[-1].window_end, found[-1].value) == (None, None, 1)
    _, without = described(guide, event_time="at")
    windows = without.window(ps.GlobalWindows())
    with pytest.raises(JobDefinitionError, match="the stream 'visits' has no watermarks"):
        windows.trigger(ps.ContinuousEventTimeTrigger("1h")).aggregate("views", guide["Views"]())
    windows.trigger(ps.EventTimeTrigger()).aggregate("views", guide["Views"]())


def test_what_is_kept_of_open_windows_is_a_column(guide: dict[str, Any]) -> None:
    """A list of windows for each key, as dumps have it."""
    shop = Shop(guide)
    (node,) = (node for node in shop.job.plan.graph.steps() if node.step == "views")
    column = shop.job.plan.core(node).state_schema.field("@windows")
    assert [part.name for part in column.type.value_type] == [
        "start",
        "end",
        "count",
        "result",
        "cleanup",
        "event_timers",
        "processing_timers",
    ]


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet"])
def test_open_windows_come_back_from_a_dump(guide: dict[str, Any], file_format: Any) -> None:
    """With all that belongs to them, whatever their parts are."""
    shop = Shop(guide)
    shop.run((1, "tea", 0, 70.0), (2, "jam", 7, 5.0), (1, "jam", 40, 3.0))
    dumped = 0
    for node in shop.job.plan.graph.steps():
        core = shop.job.plan.core(node)
        if core.windows is None:
            continue
        for (step, _), stored in shop.job.states.items():
            if step == node.id:
                for table in SlotTables(core.state_schema, MemoryEntries(stored)).tables.values():
                    rows = table.all_rows()
                    data = encode([rows], rows.schema, file_format)
                    (back,) = decode(data, rows.schema, file_format)
                    assert back.equals(rows)
                    dumped += len(rows)
    assert dumped > 8


def test_open_windows_are_rescaled(guide: dict[str, Any]) -> None:
    """They fire as they would have, and time goes on from the smallest watermark."""
    straight, moved = (Shop(guide, parallelism=2) for _ in range(2))
    pages = [f"page {number}" for number in range(20)]
    for shop in (straight, moved):
        shop.run(*((number, page, number * 5, 61.0) for number, page in enumerate(pages)))
    moved.job = rescale_runner(moved.job, 3)
    for seconds in (100, 140, 300):
        found = [shop.run((1, "tea", seconds)) for shop in (straight, moved)]
        for sink in ("views", "firings", "longest", "busiest", "late-visits"):
            one, other = (sorted(map(str, result.output(sink))) for result in found)
            assert one == other, sink


def test_windows_that_are_declared_anew_go_on(guide: dict[str, Any]) -> None:
    """Those that are open to their end, the others as they are declared now."""

    def declared(size: str) -> ps.Job:
        job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
        pages.window(ps.TumblingWindows(size)).aggregate("views", guide["Views"]()).sink_to("views")
        return job

    before, after = Shop(guide, declared("1m")), Shop(guide, declared("10s"))
    before.run((1, "tea", 5))
    after.job.states = before.job.states
    assert counted(after.run((1, "tea", 15), (1, "tea", 65), (1, "jam", 15))) == [
        ("jam", 10, 1),
        ("tea", 0, 2),
    ]
    assert counted(after.run(ends=True)) == [("tea", 60, 1)]


class Refused(ps.WindowFunction):
    def process(self, key: Any, records: Any, ctx: ps.WindowContext) -> None:
        pass


class WithSetting(Refused):
    limit = ps.Setting(int, 3)


class WithCache(Refused):
    cache: ps.TransientField[dict[str, int]] = ps.TransientField(dict)


class WithHandler(Refused):
    @ps.on_command("forget")
    def forget(self, payload: None, ctx: ps.CommandContext) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            WithSetting(),
            "Step 'views': WithSetting declares 'limit', a Setting, but a window function can only",
        ),
        (WithCache(), "WithCache declares 'cache', a TransientField"),
        (WithHandler(), "WithHandler has a command handler, but a window function takes no commands"),
    ],
)
def test_what_a_window_function_cannot_have_is_refused(
    guide: dict[str, Any], function: ps.WindowFunction, said: str
) -> None:
    """When the job is described."""
    with pytest.raises(JobDefinitionError, match=re.escape(said)):
        guide["by_page"].window(ps.TumblingWindows("1m")).process("views", function, output=guide["Message"])


def test_a_watermark_that_no_date_can_tell_is_told() -> None:
    """By a trace, as it is."""
    early, late, none = StepTime(5, "a"), StepTime(2**62), StepTime(None, "visits")
    assert slowest_time([late, early]) == early
    assert early.watermark == EPOCH + dt.timedelta(milliseconds=5)
    assert late.watermark == f"{2**62} ms"
    assert slowest_time([late, none, early]) == none
    assert none.watermark is None
    assert slowest_time([]) is None


def named_tests(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"`(?:tests/[\w/]*/)?(test_\w+\.py)::(\w+)`", page.read_text())


def test_the_tests_that_the_tables_name_are_there() -> None:
    """Each row of a table with a column for it names one."""
    named = named_tests(GUIDE)
    assert len(named) > 50
    for file, name in [*named, *named_tests(GUARANTEES)]:
        (path,) = TESTS.rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"
    inside = False
    for line in GUIDE.read_text().splitlines():
        inside = line.startswith("|") and (inside or line.endswith("| shown by |"))
        if inside and not line.startswith("|-") and not line.endswith("| shown by |"):
            assert re.search(r"\| `test_\w+\.py::test_\w+` \|$", line), line


def test_the_tables_have_every_part() -> None:
    """What is added to the code is missed in the guide."""
    page = GUIDE.read_text()
    for base in (ps.WindowAssigner, ps.Trigger, ps.Evictor):
        public = [getattr(ps, name) for name in ps.__all__]
        parts = [one for one in public if inspect.isclass(one) and issubclass(one, base) and one is not base]
        assert len(parts) >= 3
        for part in parts:
            assert re.search(rf"^\| `{part.__name__}\(", page, re.MULTILINE), part
    for name, method in vars(ps.Watermarks).items():
        if isinstance(method, classmethod):
            assert f"`Watermarks.{name}(" in page
        elif name.startswith("with_"):
            assert f"`{name}(" in page


def test_a_tick_from_outside_moves_the_job(guide: dict[str, Any]) -> None:
    """As those of records do."""
    shop = Shop(guide)
    shop.run((1, "tea", 0))
    update = WatermarkUpdate("source/visits", {"": (NOON - EPOCH) // dt.timedelta(milliseconds=1) + 60_000})
    assert counted(shop.job.run({}, updates=[update])) == [("tea", 0, 1)]
