"""The reference model of windows does what Flink does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from property_examples import examples
from window_cases import Case, case_ids, check, load_case, load_expected
from window_reference import EndlessFiringError, Outcome, run, windowed
from window_streams import EVENT_TIME, is_valid, specs_and_elements

FOREVER = 2**63 - 1

# None of these cases has a tag that would relax the comparison.


@pytest.mark.parametrize("case_id", case_ids())
def test_the_model_emits_what_flink_emitted(case_id: str) -> None:
    """Every case gives Flink's output, without exceptions."""
    case = load_case(case_id)
    check(case, windowed(case.spec, case.elements), load_expected(case_id))


@pytest.mark.parametrize("case_id", case_ids())
def test_the_model_accounts_for_every_record_of_a_case(case_id: str) -> None:
    """The model reports the fate of every record."""
    case = load_case(case_id)
    assert_accounted_for(run(case.spec, case.elements))


@given(specs_and_elements())
@examples(60)
def test_the_model_accounts_for_every_record(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """This holds for any windows and stream, and the drawn windows are valid."""
    spec, elements = drawn
    assert is_valid(spec)
    outcome = run(spec, elements)
    assert outcome.records == {at for at, element in enumerate(elements) if "key" in element}
    assert_accounted_for(outcome)


# Only some kinds of windows use event time, and the first examples may have few of them by chance.
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(specs_and_elements())
def test_nothing_is_left_behind_the_final_watermark(
    drawn: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """The final watermark removes all event-time windows that are ever cleaned up, with all their timers."""
    spec, elements = drawn
    assume(spec["assigner"]["type"] in EVENT_TIME and spec["lateness"] < FOREVER)
    outcome = run(spec, [*elements, {"wm": FOREVER}])
    assert (outcome.open_windows, outcome.timers, outcome.held) == (0, 0, set())


def assert_accounted_for(outcome: Outcome) -> None:
    """Check that every record is in one place, and that there is a reason if it is in no pane."""
    places = [outcome.accepted, outcome.late, outcome.dropped_late, outcome.dropped_in_gap]
    assert sum(map(len, places)) == len(outcome.records)
    assert set().union(*places) == outcome.records
    assert outcome.shown <= outcome.accepted
    assert outcome.never_shown <= outcome.evicted | outcome.cleaned | outcome.held
    assert outcome.shown == {at for pane in outcome.emissions for at in pane.get("seq", [])}
    assert outcome.late == {pane["at"] for pane in outcome.emissions if "late" in pane}


def windows(assigner: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """Return a spec with defaults for everything that is not given."""
    usual = {"trigger": {"type": "default"}, "evictor": {"type": "none"}, "lateness": 0, "late_output": True}
    return {"assigner": assigner, **usual, **parts}


def record(ts: int, v: float = 0, key: str = "a", **more: Any) -> dict[str, Any]:
    """A record."""
    return {"key": key, "ts": ts, "v": v, **more}


def panes(spec: dict[str, Any], *elements: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the bounds and values of emitted panes, and the values of late records."""
    return [
        ("late", emission["late"]["v"])
        if "late" in emission
        else (emission["start"], emission["end"], emission["values"])
        for emission in windowed(spec, elements)
    ]


TUMBLING = {"type": "tumbling", "size": 10}
CONTINUOUS = {"type": "continuous_event_time", "interval": 3}


def test_cumulative_windows_grow_up_to_their_size() -> None:
    """A record is in its step of the window and all longer ones, which fire shortest first."""
    spec = windows({"type": "cumulative", "step": 5, "size": 15, "offset": 1})
    assert panes(spec, record(1, 1), record(6, 2), record(15, 3), record(16, 4), {"wm": FOREVER}) == [
        (1, 6, [1]),
        (1, 11, [1, 2]),
        (1, 16, [1, 2, 3]),
        (16, 21, [4]),
        (16, 26, [4]),
        (16, 31, [4]),
    ]


def test_a_late_record_fires_the_latest_window_first() -> None:
    """A late record fires each sliding window that still takes it, from the latest one backwards."""
    spec = windows({"type": "sliding", "size": 10, "slide": 5}, lateness=100)
    assert panes(spec, {"wm": 50}, record(7, 1)) == [(5, 15, [1]), (0, 10, [1])]


def test_a_record_in_a_gap_is_counted_when_it_vanishes() -> None:
    """A record between two windows is in none; it counts as late only after the watermark has passed it."""
    spec = windows({"type": "sliding", "size": 5, "slide": 10}, late_output=False)
    outcome = run(spec, [record(7), {"wm": 7}, record(7), record(8)])
    assert (outcome.dropped_in_gap, outcome.dropped_late, outcome.late) == ({0, 3}, {2}, set())


def test_lateness_without_an_end_lasts_until_the_final_watermark() -> None:
    """With the greatest lateness windows are never cleaned up, but after the final watermark every record is
    late.
    """
    spec = windows(TUMBLING, lateness=FOREVER)
    elements = [record(1, 1), {"wm": 10**15}, record(2, 2), {"wm": FOREVER}, record(3, 3)]
    assert panes(spec, *elements) == [(0, 10, [1]), (0, 10, [1, 2]), ("late", 3)]
    assert run(spec, elements).open_windows == 1


def test_a_watermark_that_does_not_rise_fires_nothing() -> None:
    """Timers that a late record sets in the past wait until the watermark rises."""
    spec = windows(TUMBLING, trigger=CONTINUOUS)
    assert panes(spec, {"wm": 4}, record(1, 1), {"wm": 4}, {"wm": 3}) == []
    assert panes(spec, {"wm": 4}, record(1, 1), {"wm": 4}, {"wm": 5}) == [(0, 10, [1])]


def test_continuous_firing_begins_later_before_zero() -> None:
    """Negative times are rounded up, so the first firing is one interval later than it would be for positive
    times.
    """
    spec = windows(TUMBLING, trigger=CONTINUOUS)
    fired = [pane["time"] for pane in windowed(spec, [record(-9), {"wm": -1}])]
    assert fired == [-6, -3, -1]
    fired = [pane["time"] for pane in windowed(spec, [record(-8), {"wm": -1}])]
    assert fired == [-3, -1]


def test_a_merge_brings_back_the_earlier_of_two_firings() -> None:
    """Of the next firings of merged sessions the earliest counts, and all intervals from there on fire."""
    spec = windows({"type": "session", "gap": 6}, trigger=CONTINUOUS, lateness=100)
    fired = windowed(spec, [record(0), {"wm": 12}, record(11), record(6), {"wm": 13}, {"wm": 16}])
    assert [(pane["cause"], pane.get("time"), pane["end"]) for pane in fired] == [
        ("wm_timer", 3, 6),
        ("wm_timer", 5, 6),
        ("wm_timer", 5, 17),
        ("wm_timer", 8, 17),
        ("wm_timer", 11, 17),
        ("wm_timer", 14, 17),
        ("wm_timer", 16, 17),
    ]


def test_an_evictor_may_leave_an_empty_pane() -> None:
    """If everything is evicted before the firing, an empty pane is emitted; if there was nothing to evict,
    none is.
    """
    everything = {"type": "count", "n": 0}
    elements = [record(1, 1), {"wm": 9}, record(2, 2)]
    before = windows(TUMBLING, evictor={**everything, "after": False}, lateness=5)
    assert panes(before, *elements) == [(0, 10, []), (0, 10, [])]
    after = windows(TUMBLING, evictor={**everything, "after": True}, lateness=5, trigger=CONTINUOUS)
    assert panes(after, *elements) == [(0, 10, [1]), (0, 10, [2])]


def test_an_old_late_record_is_evicted_by_its_own_firing() -> None:
    """The time evictor uses the latest record of the pane, not the watermark."""
    spec = windows(TUMBLING, evictor={"type": "time", "ms": 3, "after": False}, lateness=5)
    assert panes(spec, record(8, 1), {"wm": 9}, record(5, 2), record(6, 3)) == [
        (0, 10, [1]),
        (0, 10, [1]),
        (0, 10, [1, 3]),
    ]


def test_global_windows_fire_at_the_end_of_the_stream() -> None:
    """With the trigger for it, global windows fire at the final watermark and are not cleaned up."""
    spec = windows({"type": "global", "end_of_stream": True})
    elements = [record(1, 1), {"wm": 100}, record(0, 2), {"wm": FOREVER}, record(0, 3)]
    assert panes(spec, *elements) == [(None, None, [1, 2])]
    assert run(spec, elements).held == {0, 2, 4}


def test_sliding_count_windows_begin_short() -> None:
    """Every n records the last ones are emitted, fewer at first; a slide longer than the size skips records."""
    numbers = [record(0, n) for n in range(1, 7)]
    spec = windows({"type": "count_sliding", "n": 3, "slide": 2})
    assert [values for *_, values in panes(spec, *numbers)] == [[1, 2], [2, 3, 4], [4, 5, 6]]
    spec = windows({"type": "count_sliding", "n": 1, "slide": 2})
    assert [values for *_, values in panes(spec, *numbers)] == [[2], [4], [6]]
    assert run(spec, numbers).never_shown == {0, 2, 4}


def test_windows_of_processing_time_do_not_heed_the_watermark() -> None:
    """Windows open at the final watermark stay open; no record is late."""
    spec = windows({"type": "pt_sliding", "size": 10, "slide": 5})
    elements = [record(0, 1), {"pt": 3}, {"wm": FOREVER}, record(0, 2), {"pt": 6}, record(0, 3)]
    assert panes(spec, *elements) == [(-5, 5, [1, 2])]
    assert run(spec, elements).held == {0, 3, 5}


def test_a_window_of_processing_time_may_close_and_open_in_one_instant() -> None:
    """A record in a window's last instant, after its firing, reopens it; a case can be tagged for that."""
    spec = windows({"type": "pt_tumbling", "size": 10})
    elements = [record(0, 1), {"pt": 9}, record(0, 2), {"pt": 10}]
    assert panes(spec, *elements) == [(0, 10, [1]), (0, 10, [2])]
    twice = windowed(spec, elements)
    once = [{**twice[0], "values": [1, 2], "at": 3}]
    check(Case("x", "", spec, (), frozenset({"harness_artifact"})), once, twice)
    with pytest.raises(AssertionError):
        check(Case("x", "", spec, ()), once, twice)


def test_a_trigger_of_processing_time_loses_the_tail_of_an_event_time_window() -> None:
    """Event-time windows are cleaned up by the watermark, without a firing unless the trigger asks for one."""
    spec = windows(
        {"type": "tumbling", "size": 100}, trigger={"type": "continuous_processing_time", "interval": 5}
    )
    elements = [record(50, 1), {"pt": 5}, record(51, 2), {"wm": 99}]
    assert panes(spec, *elements) == [(0, 100, [1])]
    assert run(spec, elements).never_shown == {2}


def test_a_delta_is_not_forgotten_by_a_purge() -> None:
    """The record of the last firing is still compared with, although the window has been purged."""
    delta = {"type": "delta", "threshold": 1.0}
    spec = windows({"type": "global"}, trigger={"type": "purging", "of": delta})
    numbers = [record(0, v) for v in (0, 1, 2, 3, 4)]
    assert [values for *_, values in panes(spec, *numbers)] == [[0, 1, 2], [3, 4]]


def test_a_record_with_the_bounds_of_a_merged_session_joins_it() -> None:
    """A merged session keeps its contents when a record arrives whose own session has exactly its bounds.

    Here the model differs from Flink, whose code then looks for the contents in another place.
    """
    spec = windows({"type": "dynamic_session"})
    elements = [record(0, 1, gap=10), record(5, 2, gap=10), record(0, 3, gap=15), {"wm": 14}]
    assert panes(spec, *elements) == [(0, 15, [1, 2, 3])]


def test_a_session_needs_a_gap() -> None:
    """A gap that is not positive is an error."""
    with pytest.raises(ValueError, match="must be positive; it is 0"):
        run(windows({"type": "dynamic_session"}), [record(0, gap=0)])


@pytest.mark.parametrize(
    ("spec", "end"),
    [
        (windows({"type": "global"}, trigger=CONTINUOUS), {"wm": FOREVER}),
        (windows(TUMBLING, trigger={"type": "continuous_processing_time", "interval": 3}), {"pt": 9}),
    ],
    ids=["up to the end of time", "up to the end of a window that stays open"],
)
def test_firing_for_ever_is_an_error(spec: dict[str, Any], end: dict[str, Any]) -> None:
    """A continuous trigger that would fire for ever is stopped."""
    with pytest.raises(EndlessFiringError, match="for element 1"):
        run(spec, [record(1), end])


@pytest.mark.parametrize(
    "spec",
    [
        windows({"type": "session", "gap": 5}, trigger={"type": "delta", "threshold": 1.0}),
        windows(
            {"type": "pt_session", "gap": 5},
            trigger={"type": "purging", "of": {"type": "delta", "threshold": 1.0}},
        ),
        windows({"type": "global"}),
        windows({"type": "global"}, trigger={"type": "count", "n": 2}, lateness=1),
        windows({"type": "pt_tumbling", "size": 5}, lateness=1),
        windows(TUMBLING, lateness=-1),
        windows(TUMBLING, trigger={"type": "never"}),
        windows(TUMBLING, trigger={"type": "purging", "of": {"type": "default"}}),
        windows({"type": "tumbling", "size": 5, "offset": 5}),
        windows({"type": "sliding", "size": 5, "slide": 0}),
        windows({"type": "cumulative", "step": 2, "size": 5}),
        windows({"type": "count_tumbling", "n": 2}, trigger={"type": "event_time"}),
        windows(
            {"type": "count_sliding", "n": 2, "slide": 1}, evictor={"type": "count", "n": 1, "after": True}
        ),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_not_valid(spec: dict[str, Any]) -> None:
    """Windows are invalid if Flink refuses them, or if a part has no meaning for them."""
    assert not is_valid(spec)


@pytest.mark.parametrize("case_id", case_ids())
def test_the_windows_of_every_case_are_valid(case_id: str) -> None:
    """Everything that Flink has run is valid."""
    assert is_valid(load_case(case_id).spec)


@pytest.mark.parametrize(
    "change",
    [
        lambda emitted: emitted[:-1],
        lambda emitted: [*emitted, emitted[-1]],
        lambda emitted: [*emitted[1:], emitted[0]],
        lambda emitted: [{**emitted[0], "values": [*emitted[0]["values"], 0.0]}, *emitted[1:]],
        lambda emitted: [{**emitted[0], "end": 1001}, *emitted[1:]],
        lambda emitted: [{**emitted[0], "at": 0}, *emitted[1:]],
        lambda emitted: [],
    ],
    ids=[
        "one missing",
        "one too many",
        "another order",
        "another value",
        "another end",
        "another instant",
        "nothing",
    ],
)
def test_a_difference_is_found(change: Any) -> None:
    """A difference fails the check and names the case."""
    case, expected = load_case("101"), load_expected("101")
    with pytest.raises(AssertionError, match="Case 101: "):
        check(case, change(expected), expected)


def test_what_is_chance_is_not_compared() -> None:
    """Panes of timers with one time, and values of sessions, may be in any order; extra fields of panes are
    ignored.
    """
    timers = Case("x", "", windows(TUMBLING), ())
    two = windowed(timers.spec, [record(1, 1), record(2, 2), record(1, 3, key="b"), {"wm": 9}])
    check(timers, two[::-1], two)
    bare = [{name: pane[name] for name in ("key", "start", "end", "values", "ts", "at")} for pane in two]
    check(timers, bare[::-1], two)
    sessions = Case("y", "", windows({"type": "session", "gap": 5}), ())
    one = windowed(sessions.spec, [record(1, 1), record(2, 2), {"wm": 9}])
    check(sessions, [{**one[0], "values": [2, 1], "seq": [1, 0]}], one)
    with pytest.raises(AssertionError):
        check(timers, [{**two[0], "values": [2, 1]}, two[1]], two)
