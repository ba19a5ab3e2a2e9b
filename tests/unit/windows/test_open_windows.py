"""The open windows of a key: timers fire in order, and all changes can be undone."""

from __future__ import annotations

from window_driver import picture

from penstock.windows.panes import OpenWindows
from penstock.windows.window import Window
from penstock.windows.window_timers import in_time_order, next_timer_ms

EARLY, LATE = Window(0, 10), Window(20, 30)


def opened() -> OpenWindows:
    windows = OpenWindows()
    for window in (LATE, EARLY):
        pane = windows.open(window)
        windows.add_timer("event_timers", 5, window, pane)
        windows.add_timer("event_timers", window.end, window, pane)
        windows.add_timer("processing_timers", 7, window, pane)
    windows.commit()
    return windows


def test_timers_are_in_order_and_each_is_there_once() -> None:
    """Timers are sorted by time, then by window, without duplicates."""
    windows = opened()
    windows.add_timer("event_timers", 5, LATE, windows.panes[LATE])
    assert windows.event_timers == [(5, EARLY), (5, LATE), (10, EARLY), (30, LATE)]
    assert windows.processing_timers == [(7, EARLY), (7, LATE)]
    assert (next_timer_ms("event_timers", windows), next_timer_ms("processing_timers", windows)) == (5, 7)
    assert (
        next_timer_ms("event_timers", OpenWindows())
        is next_timer_ms("processing_timers", OpenWindows())
        is None
    )


def test_a_window_goes_with_its_timers() -> None:
    """Timers of other windows stay."""
    windows = opened()
    windows.close(EARLY)
    assert windows.event_timers == [(5, LATE), (30, LATE)]
    assert windows.processing_timers == [(7, LATE)]


def test_all_changes_can_be_taken_back() -> None:
    """They can be undone all at once, or back to a position in the journal."""
    windows = opened()
    before = picture(windows)
    windows.close(EARLY)
    middle, mark = picture(windows), len(windows.journal)
    windows.open(Window(40, 50))
    windows.remove_timer("event_timers", 30, LATE, windows.panes[LATE])
    windows.remove_timer("event_timers", 31, LATE, windows.panes[LATE])
    windows.spend_timer("event_timers")
    windows.spend_timer("processing_timers")
    windows.roll_back(mark)
    assert picture(windows) == middle
    windows.remove_timer("processing_timers", 7, LATE, windows.panes[LATE])
    windows.roll_back()
    assert picture(windows) == before
    windows.close(LATE)
    windows.commit()
    windows.roll_back()
    assert list(windows.panes) == [EARLY]


def test_windows_that_touch_are_found() -> None:
    """This includes windows where one ends as another begins."""
    windows = opened()
    windows.open(Window(50, 60))
    assert windows.touching(Window(11, 19)) == []
    assert windows.touching(Window(10, 19)) == [EARLY]
    assert windows.touching(Window(11, 20)) == [LATE]
    assert windows.touching(Window(9, 50)) == [EARLY, LATE, Window(50, 60)]
    assert windows.touching(Window(21, 22)) == [LATE]
    windows.close(LATE)
    assert windows.touching(Window(9, 40)) == [EARLY]


def test_windows_are_restored_with_their_timers() -> None:
    """The timers come from the stored panes."""
    windows = opened()
    restored = OpenWindows.of(reversed(windows.panes.items()))
    assert picture(restored) == picture(windows)


def test_timers_of_many_keys_come_in_the_order_of_time() -> None:
    """This includes timers set by firings, and stops at the given time."""
    first, second = opened(), opened()
    fired: list[tuple[str, int]] = []
    for key, windows in in_time_order("event_timers", [("a", first), ("b", second)], 12):
        time_ms, window = windows.spend_timer("event_timers")
        fired.append((key, time_ms))
        if time_ms == 10:
            windows.add_timer(
                "event_timers", time_ms + (1 if key == "b" else 9), window, windows.panes[window]
            )
    assert fired == [("a", 5), ("a", 5), ("b", 5), ("b", 5), ("a", 10), ("b", 10), ("b", 11)]
