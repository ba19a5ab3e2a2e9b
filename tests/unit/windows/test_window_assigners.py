"""Window assigners: which windows a record belongs to."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import JobDefinitionError
from penstock.windows.assigners import (
    CountWindows,
    CumulativeWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)
from penstock.windows.evictors import CountEvictor
from penstock.windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from penstock.windows.window import GLOBAL, Window
from penstock.windows.window_parameters import Parameter

times = st.integers(-100_000, 100_000)
sizes = st.integers(1, 5_000)


def ms(number: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=number)


def assigned(assigner: WindowAssigner, time_ms: int) -> list[tuple[int, int]]:
    return [tuple(window) for window in assigner.assign(None, time_ms)]


def test_a_window_ends_before_its_end() -> None:
    """The global window has no end."""
    assert Window(0, 1_000).max_timestamp == 999
    assert GLOBAL.max_timestamp == 2**63 - 1


@given(times, sizes, st.integers(-5_000, 5_000))
def test_tumbling_windows_cover_all_times_once(time_ms: int, size: int, shift: int) -> None:
    """Also before 1970, and with an offset."""
    offset = shift % size - (size if shift < 0 and shift % size else 0)
    ((start, end),) = assigned(TumblingWindows(ms(size), ms(offset)), time_ms)
    assert start <= time_ms < end == start + size
    assert (start - offset) % size == 0


@given(times, sizes, sizes)
def test_sliding_windows_are_all_that_contain_a_time(time_ms: int, size: int, slide: int) -> None:
    """They come latest start first; a time in a gap has none."""
    starts = range((time_ms - size) // slide * slide - slide, time_ms + slide + 1)
    expected = [(s, s + size) for s in starts if s % slide == 0 and s <= time_ms < s + size]
    assert assigned(SlidingWindows(ms(size), ms(slide)), time_ms) == expected[::-1]


@given(times, st.integers(1, 500), st.integers(1, 8))
def test_cumulative_windows_grow_from_one_start(time_ms: int, step: int, steps: int) -> None:
    """The shortest one containing the time comes first, the full size last."""
    size = step * steps
    start = time_ms // size * size
    expected = [(start, start + n * step) for n in range(1, steps + 1) if time_ms < start + n * step]
    assert assigned(CumulativeWindows(ms(step), ms(size)), time_ms) == expected


def test_a_session_lasts_for_the_gap() -> None:
    """The gap is the assigner's or the record's."""
    assert assigned(SessionWindows("1s"), 5) == [(5, 1_005)]
    of_record = SessionWindows(lambda record: record)
    assert of_record.assign("2s", 5) == (Window(5, 2_005),)
    assert of_record.assign(ms(7), 5) == (Window(5, 12),)
    for gap in ("0s", 5, None):
        with pytest.raises(ValueError, match="the gap of a record's session"):
            of_record.assign(gap, 5)


def test_global_and_count_windows_have_no_bounds() -> None:
    """They differ in trigger and evictor."""
    for windows in (GlobalWindows(), CountWindows(3), CountWindows(3, 2)):
        assert windows.assign(None, 5) == (GLOBAL,)
        assert not windows.is_event_time
    assert isinstance(GlobalWindows().default_trigger(), NeverTrigger)
    assert GlobalWindows().default_evictor() is CountWindows(3).default_evictor() is None
    assert isinstance(CountWindows(3).default_trigger(), PurgingTrigger)
    assert isinstance(CountWindows(3, 2).default_trigger(), CountTrigger)
    assert isinstance(CountWindows(3, 2).default_evictor(), CountEvictor)


def test_windows_are_of_one_kind_of_time() -> None:
    """The kind of time is also the default for firing."""
    assert isinstance(TumblingWindows("1s").default_trigger(), EventTimeTrigger)
    for windows in (
        TumblingWindows("1s", time="processing"),
        SlidingWindows("2s", "1s", time="processing"),
        SessionWindows("1s", time="processing"),
    ):
        assert not windows.is_event_time
        assert isinstance(windows.default_trigger(), ProcessingTimeTrigger)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: TumblingWindows("0s"), "the size of TumblingWindows is '0s'; it must be at least 1 ms"),
        (lambda: TumblingWindows(5), "the size of TumblingWindows is 5; give a timedelta"),
        (
            lambda: TumblingWindows("5s", "5s"),
            "The offset of TumblingWindows is '5s'; it must be less than 5000",
        ),
        (lambda: TumblingWindows("5s", time="wall"), "time='wall'; it is 'event' or 'processing'"),
        (lambda: SlidingWindows("5s", "-1s"), "the slide of SlidingWindows is '-1s'"),
        (lambda: SlidingWindows("5s", "1s", ms(-1_000)), "The offset of SlidingWindows"),
        (lambda: SessionWindows(ms(0)), "the gap of SessionWindows"),
        (lambda: SessionWindows("1s", time="wall"), "SessionWindows have time='wall'"),
        (lambda: CumulativeWindows("2s", "5s"), r"\(5000 ms\) is not a multiple of their step \(2000 ms\)"),
        (lambda: CountWindows(0), "the count of CountWindows is 0"),
        (lambda: CountWindows(3, 0), "the slide of CountWindows is 0"),
    ],
)
def test_what_makes_no_windows_is_refused(made: Callable[[], Any], said: str) -> None:
    """The error comes when they are described, and says what to do."""
    with pytest.raises(JobDefinitionError, match=said):
        made()


def test_a_new_size_counts_from_the_next_window_on() -> None:
    """New windows follow the current parameters."""
    size = Parameter("1s")
    windows = TumblingWindows(size)
    assert assigned(windows, 3_500) == [(3_000, 4_000)]
    assert windows.fits(Window(3_000, 4_000))
    size.set("5s")
    assert windows.version == 1
    assert assigned(windows, 5_500) == [(5_000, 10_000)]
    assert not windows.fits(Window(3_000, 4_000))
    assert not windows.fits(Window(1_000, 6_000))


def test_a_window_of_a_new_size_is_cut_at_open_ones() -> None:
    """It is cut on both sides; a record in an open window goes into that."""
    windows = TumblingWindows("5s")
    others = [Window(1_000, 2_000), Window(3_000, 4_000)]

    def beside(time_ms: int) -> list[tuple[int, int]]:
        return [
            tuple(one) for one in windows.assign_with_others(windows.assign(None, time_ms), others, time_ms)
        ]

    assert beside(500) == [(0, 1_000)]
    assert beside(1_000) == [(1_000, 2_000)]
    assert beside(2_999) == [(2_000, 3_000)]
    assert beside(4_000) == [(4_000, 5_000)]
    assert beside(5_000) == [(5_000, 10_000)]


def test_overlapping_windows_of_old_and_new_parameters_go_on_side_by_side() -> None:
    """Old windows stay until their end."""
    slide, step = Parameter("1s"), Parameter("1s")
    sliding, cumulative = SlidingWindows("2s", slide), CumulativeWindows(step, "6s")
    slide.set("2s")
    old = [Window(1_000, 3_000)]
    assert not sliding.fits(old[0])
    assert sliding.assign_with_others(sliding.assign(None, 2_500), old, 2_500) == [Window(2_000, 4_000), *old]
    assert sliding.assign_with_others(sliding.assign(None, 3_000), old, 3_000) == [Window(2_000, 4_000)]
    assert cumulative.fits(Window(0, 5_000))
    step.set("4s")
    assert (sliding.version, cumulative.version) == (1, 1)
    assert not cumulative.fits(Window(0, 5_000))
    assert cumulative.fits(Window(0, 6_000))
    assert assigned(cumulative, 500) == [(0, 4_000), (0, 6_000)]


def test_the_same_window_is_not_made_for_each_record() -> None:
    """Windows are cached, and the cache is bounded."""
    windows = TumblingWindows("1s")
    assert windows.assign(None, 10) is windows.assign(None, 20)
    for start in range(5_000):
        windows.assign(None, start * 1_000)
    assert len(windows._cache) <= 4_096


def test_assigners_travel() -> None:
    """They are pickled to the workers."""
    for windows in (TumblingWindows(Parameter("1s")), SlidingWindows("2s", "1s"), SessionWindows("1s")):
        assert pickle.loads(pickle.dumps(windows)).assign(None, 5) == windows.assign(None, 5)
