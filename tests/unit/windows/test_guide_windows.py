"""The examples of the guide to time: settings of windows, the clock, and changes to open windows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from guide_code import python_of
from time_guide import GUIDE, Shop, counted, described

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.snapshots.table_formats import decode, encode
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_runner import NOW
from penstock.testing.memory_entries import MemoryEntries
from penstock.testing.saved_states import rescale_runner


@pytest.fixture
def guide() -> Iterator[dict[str, Any]]:
    """Run the guide's Python code and return its names."""
    with python_of(GUIDE) as names:
        yield names


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
    """Each has the documented name; invalid values are refused, and so is a start at an event time."""
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
    """The change holds from the next window on, for all keys."""
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
    """The stamp is the version of the settings under which a result fired."""
    job, pages = described(guide, event_time="at", watermarks=ps.Watermarks.bounded("5s"))
    views = pages.window(ps.TumblingWindows("1m")).aggregate("views", guide["Views"]())
    views.stamp_control_version().sink_to("views")
    shop = Shop(guide, job)
    shop.run((1, "tea", 0), (1, "jam", 1))
    shop.command("set", {"size": "2m"}, target={"step": "views"}, version=5)
    assert [one.control_version for one in shop.run(ends=True).output("views")] == [5, 5]


def test_results_as_columns_are_stamped(guide: dict[str, Any]) -> None:
    """They are stamped like other results; another aggregate counts from the next firing on."""
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
    """Without a field there is nothing to add up."""
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
    """Records within the last millisecond belong to the window."""
    shop = by_clock(guide)
    shop.run((1, "tea", 0))
    shop.job.now = NOW + dt.timedelta(milliseconds=999)
    assert not shop.run((2, "tea", 0)).output("views")
    shop.job.now = NOW + dt.timedelta(milliseconds=1_000)
    assert [one.value for one in shop.run().output("views")] == [2]


def test_windows_by_the_clock_are_done_when_time_ends(guide: dict[str, Any]) -> None:
    """They fire once, so that no later micro-batch repeats them."""
    shop = by_clock(guide)
    shop.run((1, "tea", 0))
    assert [one.value for one in shop.run(ends=True).output("views")] == [1]
    shop.job.now = NOW + dt.timedelta(hours=1)
    assert not shop.run().output("views")


def test_all_records_share_the_windows_of_window_all(guide: dict[str, Any]) -> None:
    """The shared key is 0."""
    job = ps.Job("other", key_groups=4)
    visits = job.data_stream("visits", schema=guide["Visit"], event_time=ps.INGESTION_TIME)
    visits.window_all(ps.TumblingWindows("1m")).aggregate("views", guide["Views"]()).sink_to("views")
    shop = Shop(guide, job, parallelism=3)
    shop.run((1, "tea", 0), (2, "jam", 0))
    (record,) = shop.run(ends=True).output("views")
    assert (record.key, record.window_start, record.value) == (0, NOW, 2)


def test_a_global_window_fires_when_time_ends(guide: dict[str, Any]) -> None:
    """Its bounds are null. Event-time intervals need watermarks; the end of time comes without them."""
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
    """The column has a list of windows for each key, as in dumps."""
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
    """They return complete, for all kinds of window parts."""
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
    """They fire unchanged, and time advances from the smallest watermark."""
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
    """Open windows continue to their end; new ones follow the new declaration."""

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
    """The error comes when the job is described."""
    with pytest.raises(JobDefinitionError, match=re.escape(said)):
        guide["by_page"].window(ps.TumblingWindows("1m")).process("views", function, output=guide["Message"])
