"""The window operator emits what Flink and the reference model emit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from property_examples import examples
from window_cases import SESSIONS, Case, case_ids, check, load_case, load_expected
from window_driver import Driver, made_operator, picture
from window_reference import run
from window_streams import specs_and_elements

from penstock.windows.panes import OpenWindows

FOREVER = 2**63 - 1


@pytest.mark.parametrize("case_id", case_ids())
def test_the_operator_emits_what_flink_emitted(case_id: str) -> None:
    """Every case gives Flink's output, without exceptions."""
    case = load_case(case_id)
    check(case, Driver(made_operator(case.spec)).run(case.elements), load_expected(case_id))


def goes_by_order(spec: dict[str, Any]) -> bool:
    """Whether an evictor depends on the order within merged sessions, which is by session here and by arrival
    in the model.
    """
    return spec["assigner"]["type"] in SESSIONS and spec["evictor"]["type"] in {"count", "delta"}


@given(specs_and_elements())
@examples(60)
def test_the_operator_emits_what_the_model_emits(
    drawn: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """This holds for any windows and stream; each record has the same fate as in the model."""
    spec, elements = drawn
    assume(not goes_by_order(spec))
    outcome = run(spec, elements)
    driver = Driver(made_operator(spec))
    check(Case("drawn", "", spec, tuple(elements)), driver.run(elements), outcome.emissions)
    emitted = driver.operator.emitted
    assert emitted.in_windows == len(outcome.accepted)
    assert emitted.late_records == len(outcome.late)
    assert emitted.dropped_late == len(outcome.dropped_late)
    assert emitted.without_window == len(outcome.dropped_in_gap)


@given(specs_and_elements(are_cleaned_up=True))
@examples(40)
def test_nothing_is_left_at_the_end(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """The final watermark removes all event-time windows that are ever cleaned up, with their timers."""
    spec, elements = drawn
    driver = Driver(made_operator(spec))
    driver.run([*elements, {"wm": FOREVER}])
    for windows in driver.keys.values():
        assert not windows.panes
        assert not windows.event_timers
        assert not windows.processing_timers
        assert not windows.in_order


@given(specs_and_elements())
@examples(60)
def test_what_was_done_can_be_taken_back(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """Each record and each timer is processed, undone and processed again, with the result of processing it
    once.
    """
    spec, elements = drawn
    operator = made_operator(spec)

    def twice(windows: OpenWindows, act: Callable[[], None]) -> None:
        before = picture(windows)
        act()
        after, panes = picture(windows), list(operator.emitted.panes)
        windows.roll_back()
        assert picture(windows) == before
        assert not operator.emitted.panes
        operator.emitted.late.clear()
        act()
        assert picture(windows) == after
        assert operator.emitted.panes == panes

    once = Driver(made_operator(spec)).run(elements)
    assert Driver(operator, twice).run(elements) == once
