"""The guide of time: what docs/time.md shows runs and does what the page says."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from guide_code import python_of
from time_guide import GUIDE, NOON, Shop, counted, described

import penstock as ps
from penstock.base.instants import EPOCH
from penstock.control.receipts import StepTime, slowest_time
from penstock.operators.watermarks import WatermarkUpdate
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

GUARANTEES = GUIDE.with_name("guarantees.md")
TESTS = Path(__file__).parents[1]


@pytest.fixture
def guide() -> Iterator[dict[str, Any]]:
    """The names that the guide's Python makes."""
    with python_of(GUIDE) as names:
        yield names


def texts(result: BatchOutcome, sink: str) -> list[tuple[str, str]]:
    return [(told.page, told.text) for told in result.output(sink)]


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
    assert (steps["views"]["watermark"], steps["views"]["held_by"]) == ("2026-11-21T12:00:54.999000Z", None)


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
    """Windows that are open when it changes continue; one that cannot be is refused."""
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
