"""What the tables in docs/time.md say of windows, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from window_driver import Driver, everything

from penstock.windows.assigners import (
    CountWindows,
    CumulativeWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)
from penstock.windows.contexts import EvictorContext
from penstock.windows.evictors import CountEvictor, DeltaEvictor, Element, Evictor, TimeEvictor
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from penstock.windows.window import Window

END = {"wm": 2**63 - 1}
TUMBLING = TumblingWindows("1s")


def driven(assigner: WindowAssigner = TUMBLING, **parts: Any) -> Driver:
    return Driver(WindowOperator(WindowSpec(assigner, everything(), late_output=True, **parts)))


def record(time_ms: int, value: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"key": "a", "ts": time_ms, "v": value, **more}


def told(driver: Driver, *elements: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the emitted panes (start, end, values), and the times of late records."""
    before = len(driver.emissions)
    driver.run(elements)
    return [
        ("late", one["late"]["ts"]) if "late" in one else (one["start"], one["end"], one["values"])
        for one in driver.emissions[before:]
    ]


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return abs(float(other["v"] - one["v"]))


# -- assigners --


def test_tumbling_windows() -> None:
    """They follow each other, at multiples of the size plus the offset."""
    assert told(driven(), record(999, 1), record(1_000, 2), END) == [(0, 1_000, [1]), (1_000, 2_000, [2])]
    assert told(driven(TumblingWindows("1s", "300ms")), record(299, 1), END) == [(-700, 300, [1])]


def test_sliding_windows() -> None:
    """A record is in every window that contains its time, and in none when it falls into a gap."""
    driver = driven(SlidingWindows("2s", "1s"))
    assert told(driver, record(1_500, 1), END) == [(0, 2_000, [1]), (1_000, 3_000, [1])]
    assert told(driven(SlidingWindows("1s", "2s")), record(1_500, 1), END) == []


def test_cumulative_windows() -> None:
    """They start together and end at successive steps."""
    driver = driven(CumulativeWindows(step="1s", size="3s"))
    assert told(driver, record(500, 1), record(1_500, 2), END) == [
        (0, 1_000, [1]),
        (0, 2_000, [1, 2]),
        (0, 3_000, [1, 2]),
    ]


def test_session_windows() -> None:
    """A record exactly at the gap's distance joins a session, and one between two sessions merges them."""
    driver = driven(SessionWindows("1s"))
    assert told(driver, record(0, 1), record(2_000, 2), record(1_000, 3), record(4_001, 4), END) == [
        (0, 3_000, [1, 2, 3]),
        (4_001, 5_001, [4]),
    ]


def test_session_windows_with_the_gap_of_a_record() -> None:
    """The session lasts until the gap of every record is over, also an earlier record's."""
    driver = driven(SessionWindows(lambda found: f"{found['gap']}ms"))
    assert told(driver, record(0, 1, gap=900), record(100, 2, gap=50), END) == [(0, 900, [1, 2])]


def test_global_windows() -> None:
    """They hold all records of a key, none late, and need an explicit trigger."""
    driver = driven(GlobalWindows(), trigger=CountTrigger(2))
    assert told(driver, {"wm": 5_000}, record(9, 1), record(3, 2)) == [(None, None, [1, 2])]
    assert told(driven(GlobalWindows()), record(9, 1), END) == []


def test_count_windows() -> None:
    """They hold n records in order of arrival; an incomplete window does not fire."""
    driver = driven(CountWindows(2))
    assert told(driver, record(9, 1), record(3, 2), record(5, 3), END) == [(None, None, [1, 2])]


def test_count_windows_that_slide() -> None:
    """Every so many records they emit the last n; the first windows have fewer."""
    driver = driven(CountWindows(3, 2))
    assert told(driver, *(record(0, n) for n in range(1, 7))) == [
        (None, None, [1, 2]),
        (None, None, [2, 3, 4]),
        (None, None, [4, 5, 6]),
    ]


@pytest.mark.parametrize(
    ("assigner", "pane"),
    [
        (TumblingWindows("1s", time="processing"), (0, 1_000, [1])),
        (SlidingWindows("1s", "1s", time="processing"), (0, 1_000, [1])),
        (SessionWindows("1s", time="processing"), (100, 1_100, [1])),
    ],
)
def test_windows_by_processing_time(assigner: WindowAssigner, pane: tuple[Any, ...]) -> None:
    """Watermarks have no effect, and event times do not matter."""
    driver = driven(assigner)
    assert told(driver, {"pt": 100}, record(77_000, 1), END) == []
    assert told(driver, {"pt": pane[1]}) == [pane]


def test_an_assigner_of_your_own() -> None:
    """Windows may depend on the record and its time in any way."""

    class OfItsSize(WindowAssigner):
        def assign(self, record: Any, time_ms: int) -> Sequence[Window]:
            return [Window(time_ms, time_ms + record["size"])]

    driver = driven(OfItsSize())
    assert told(driver, record(5, 1, size=10), record(5, 2, size=10), END) == [(5, 15, [1, 2])]


# -- triggers --


def test_event_time_trigger() -> None:
    """It fires when the watermark reaches the window's last millisecond, and then for each record."""
    driver = driven(trigger=EventTimeTrigger(), lateness="1s")
    assert told(driver, record(5, 1), {"wm": 998}) == []
    assert told(driver, {"wm": 999}) == [(0, 1_000, [1])]
    assert told(driver, record(6, 2)) == [(0, 1_000, [1, 2])]


def test_processing_time_trigger() -> None:
    """It fires when the clock passes the end, for windows of either kind of time."""
    driver = driven(trigger=ProcessingTimeTrigger())
    assert told(driver, record(5, 1), {"pt": 998}) == []
    assert told(driver, {"pt": 999}) == [(0, 1_000, [1])]


def test_count_trigger() -> None:
    """It fires every n records with the whole window, but not at the end."""
    driver = driven(trigger=CountTrigger(2))
    elements = [record(n, n) for n in range(1, 6)]
    assert told(driver, *elements, END) == [(0, 1_000, [1, 2]), (0, 1_000, [1, 2, 3, 4])]


def test_delta_trigger() -> None:
    """It fires above the threshold, measured from the record of the last firing."""
    driver = driven(trigger=DeltaTrigger(2.0, difference))
    values = [5, 6, 7, 8, 9, 11]
    assert told(driver, *(record(n, n) for n in values), END) == [
        (0, 1_000, [5, 6, 7, 8]),
        (0, 1_000, values),
    ]


def test_continuous_event_time_trigger() -> None:
    """It fires at each multiple of the interval that the watermark passes, and at the end."""
    driver = driven(trigger=ContinuousEventTimeTrigger("400ms"))
    assert told(driver, record(5, 1), {"wm": 400}) == [(0, 1_000, [1])]
    assert told(driver, record(6, 2), {"wm": 999}) == [(0, 1_000, [1, 2]), (0, 1_000, [1, 2])]


def test_continuous_processing_time_trigger() -> None:
    """It fires at each multiple of the interval on the clock; the watermark cleans up the rest without a
    firing.
    """
    driver = driven(trigger=ContinuousProcessingTimeTrigger("400ms"))
    assert told(driver, record(5, 1), {"pt": 400}) == [(0, 1_000, [1])]
    assert told(driver, record(6, 2), END, {"pt": 2_000}) == []


def test_purging_trigger() -> None:
    """A pane never repeats records that have fired."""
    driver = driven(trigger=PurgingTrigger(CountTrigger(2)))
    elements = [record(n, n) for n in range(1, 6)]
    assert told(driver, *elements, END) == [(0, 1_000, [1, 2]), (0, 1_000, [3, 4])]


def test_never_trigger() -> None:
    """The window is cleaned up without a firing."""
    driver = driven(trigger=NeverTrigger())
    assert told(driver, record(1, 1), END) == []
    assert not driver.keys["a"].panes


# -- evictors --


def test_count_evictor() -> None:
    """It keeps the last n records."""
    assert told(driven(evictor=CountEvictor(2)), *(record(9 - n, n) for n in (1, 2, 3)), END) == [
        (0, 1_000, [2, 3])
    ]


def test_time_evictor() -> None:
    """It keeps records less than a duration older than the newest."""
    driver = driven(evictor=TimeEvictor("100ms"))
    assert told(driver, record(500, 1), record(400, 2), record(401, 3), END) == [(0, 1_000, [1, 3])]


def test_delta_evictor() -> None:
    """It keeps records that differ from the last one by less than the threshold."""
    driver = driven(evictor=DeltaEvictor(2.0, difference))
    assert told(driver, record(1, 5), record(2, 6), record(3, 7), END) == [(0, 1_000, [6, 7])]


def test_an_evictor_that_drops_after() -> None:
    """The firing shows all records; the next one has only the kept ones."""
    driver = driven(evictor=CountEvictor(1, after=True), lateness="1s")
    assert told(driver, record(1, 1), record(2, 2), {"wm": 999}) == [(0, 1_000, [1, 2])]
    assert told(driver, record(3, 3)) == [(0, 1_000, [2, 3])]


def test_what_is_evicted_is_gone() -> None:
    """Later firings of the window do not have it."""
    driver = driven(evictor=CountEvictor(2), lateness="1s")
    elements = [record(n, n) for n in (1, 2, 3)]
    assert told(driver, *elements, {"wm": 999}, record(4, 4)) == [(0, 1_000, [2, 3]), (0, 1_000, [3, 4])]


def test_a_window_of_which_all_is_evicted_fires_empty() -> None:
    """The empty pane is emitted only if the window had records before."""
    assert told(driven(evictor=CountEvictor(0)), record(1, 1), END) == [(0, 1_000, [])]


def test_an_evictor_of_your_own() -> None:
    """It chooses which records to keep."""

    class WithoutZeros(Evictor):
        def evict_before(
            self, elements: Sequence[Element], size: int, window: Window, ctx: EvictorContext
        ) -> Sequence[Element]:
            return [(time_ms, found) for time_ms, found in elements if found["v"]]

    driver = driven(evictor=WithoutZeros())
    assert told(driver, record(1, 0), record(2, 7), END) == [(0, 1_000, [7])]


# -- lateness --


def test_a_window_is_late_and_not_a_record() -> None:
    """A record older than the watermark is not late while its window is open."""
    driver = driven()
    assert told(driver, {"wm": 900}, record(5, 1)) == []
    assert told(driver, {"wm": 999}, record(6, 2)) == [(0, 1_000, [1]), ("late", 6)]


def test_within_the_allowed_lateness_each_record_fires() -> None:
    """Each firing has the window's whole content, also for its first record; after the lateness a record is
    late.
    """
    driver = driven(lateness="500ms")
    assert told(driver, {"wm": 1_498}, record(5, 1), record(6, 2)) == [(0, 1_000, [1]), (0, 1_000, [1, 2])]
    assert told(driver, {"wm": 1_499}, record(7, 3)) == [("late", 7)]
    assert not driver.keys["a"].panes


def test_with_a_purging_trigger_late_firings_show_the_late_record_alone() -> None:
    """Cleaning up the window emits nothing."""
    driver = driven(trigger=PurgingTrigger(EventTimeTrigger()), lateness="500ms")
    assert told(driver, record(5, 1), {"wm": 999}, record(6, 2), END) == [(0, 1_000, [1]), (0, 1_000, [2])]


def test_a_record_is_late_when_all_its_windows_are() -> None:
    """Sliding windows that are open take it; those that have ended fire, the latest first."""
    driver = driven(SlidingWindows("2s", "1s"))
    assert told(driver, {"wm": 1_999}, record(1_500, 1), END) == [(1_000, 3_000, [1])]
    driver = driven(SlidingWindows("2s", "1s"), lateness="1h")
    assert told(driver, {"wm": 5_000}, record(1_500, 1)) == [(1_000, 3_000, [1]), (0, 2_000, [1])]


def test_a_record_in_a_gap_is_late_only_behind_the_watermark() -> None:
    """Before that it counts as a record without a window."""
    driver = driven(SlidingWindows("1s", "2s"))
    assert told(driver, {"wm": 1_500}, record(1_400, 1), record(1_600, 2)) == [("late", 1_400)]
    assert driver.operator.emitted.without_window == 1


def test_a_late_record_joins_an_open_session() -> None:
    """This holds even if a session of its own would be late."""
    driver = driven(SessionWindows("1s"))
    assert told(driver, record(900, 1), {"wm": 1_500}, record(100, 2), record(-200, 3)) == []
    assert told(driver, record(-1_500, 4)) == [("late", -1_500)]
    assert told(driver, END) == [(-200, 1_900, [1, 2, 3])]


def test_a_late_record_that_merges_fires_only_when_the_merged_session_has_ended() -> None:
    """Otherwise the session waits for the watermark."""
    driver = driven(SessionWindows("1s"), lateness="10s")
    assert told(driver, record(0, 1), {"wm": 1_500}, record(500, 2)) == [(0, 1_000, [1]), (0, 1_500, [1, 2])]
    assert told(driver, record(1_200, 3)) == []
    assert told(driver, {"wm": 2_199}) == [(0, 2_200, [1, 2, 3])]


def test_nothing_is_late_where_event_time_plays_no_part() -> None:
    """Such are global windows, count windows and processing-time windows, whatever lateness is allowed."""
    for assigner in (CountWindows(1), TumblingWindows("1s", time="processing")):
        driver = driven(assigner, lateness="5s")
        assert told(driver, END, record(5, 1), {"pt": 1_000}) == [
            (None, None, [1]) if isinstance(assigner, CountWindows) else (0, 1_000, [1])
        ]


# -- what is different from Flink --


def test_a_record_with_the_bounds_of_a_merged_session_finds_its_contents() -> None:
    """Flink looks for them in another place."""
    driver = driven(SessionWindows(lambda found: f"{found['gap']}ms"))
    elements = [record(0, 1, gap=100), record(150, 2, gap=100), record(50, 3, gap=100)]
    assert told(driver, *elements, record(0, 4, gap=250), END) == [(0, 250, [1, 2, 3, 4])]
