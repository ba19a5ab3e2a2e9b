"""Watermarks of a slot: the minimum over partitions, idleness, the end, and the state after a rescaling."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.watermarks import (
    END_MS,
    EventClock,
    InputWatermarkRule,
    Progress,
    WatermarkUpdate,
    merge_progress,
)

TOPIC = InputWatermarkRule("source/readings", ("0", "1"), grows=True)


def advance(
    progress: Progress,
    now_ms: int,
    *updates: WatermarkUpdate,
    watermark_rules: tuple[InputWatermarkRule, ...] = (TOPIC,),
) -> EventClock:
    return EventClock(watermark_rules, progress, updates, now_ms)


def test_it_is_the_minimum_over_all_partitions() -> None:
    """A partition without records yet holds time back."""
    clock = advance(Progress(), 0, WatermarkUpdate("source/readings", {"0": 50}))
    assert (clock.before_ms, clock.after_ms, clock.held_by) == (None, None, ("source/readings", "1"))
    clock = advance(clock.progress, 10, WatermarkUpdate("source/readings", {"1": 30}))
    assert (clock.before_ms, clock.after_ms, clock.moved) == (None, 30, True)
    clock = advance(clock.progress, 20, WatermarkUpdate("source/readings", {"1": 70}))
    assert (clock.before_ms, clock.after_ms) == (30, 50)


def test_it_never_goes_back() -> None:
    clock = advance(Progress(), 0, WatermarkUpdate("source/readings", {"0": 50, "1": 60}))
    clock = advance(clock.progress, 1, WatermarkUpdate("source/readings", {"0": 20, "2": 10}))
    assert clock.progress.partitions["source/readings"] == {"0": (50, 1), "1": (60, 0), "2": (10, 1)}
    assert (clock.after_ms, clock.moved) == (50, False)


def test_an_idle_partition_holds_nothing_back() -> None:
    """It counts again once a record arrives; when all are idle, the most advanced one counts."""
    rule = (InputWatermarkRule("source/readings", ("0", "1"), idle_ms=1000),)
    clock = advance(Progress(), 0, WatermarkUpdate("source/readings", {"0": 50}), watermark_rules=rule)
    assert (clock.after_ms, clock.next_idle_ms) == (None, 1000)
    clock = advance(clock.progress, 900, WatermarkUpdate("source/readings", {"0": 90}), watermark_rules=rule)
    clock = advance(clock.progress, 1000, watermark_rules=rule)
    assert (clock.after_ms, clock.next_idle_ms) == (90, 1900)
    clock = advance(clock.progress, 1100, WatermarkUpdate("source/readings", {"1": 20}), watermark_rules=rule)
    assert (clock.after_ms, clock.held_by) == (90, ("source/readings", "1"))
    clock = advance(clock.progress, 3000, watermark_rules=rule)
    assert (clock.after_ms, clock.held_by, clock.next_idle_ms) == (90, None, None)


def test_several_origins_count_together() -> None:
    watermark_rules = (
        InputWatermarkRule("source/a", ("",)),
        InputWatermarkRule("source/b", ("",), idle_ms=100),
    )
    clock = advance(
        Progress(),
        0,
        WatermarkUpdate("source/a", {"": 7}),
        WatermarkUpdate("source/other", {"": 1}),
        watermark_rules=watermark_rules,
    )
    assert clock.after_ms is None
    assert (
        advance(
            clock.progress, 50, WatermarkUpdate("source/b", {"": 5}), watermark_rules=watermark_rules
        ).after_ms
        == 5
    )
    assert advance(clock.progress, 100, watermark_rules=watermark_rules).after_ms == 7


def test_a_slot_that_told_that_it_is_idle_holds_nothing_back() -> None:
    """It counts again once it reports; with and without a watermark."""
    watermark_rules = (InputWatermarkRule("source/a", ("",)), InputWatermarkRule("step/b", ("0", "1")))
    clock = advance(
        Progress(),
        0,
        WatermarkUpdate("source/a", {"": 50}),
        WatermarkUpdate("step/b", {"0": 20}),
        watermark_rules=watermark_rules,
    )
    assert (clock.after_ms, clock.held_by) == (None, ("step/b", "1"))
    clock = advance(
        clock.progress, 1, WatermarkUpdate("step/b", {"1": None}, idle=True), watermark_rules=watermark_rules
    )
    assert (clock.after_ms, clock.held_by) == (20, ("step/b", "0"))
    clock = advance(
        clock.progress, 2, WatermarkUpdate("step/b", {"0": 30}, idle=True), watermark_rules=watermark_rules
    )
    assert (clock.after_ms, clock.held_by, clock.next_idle_ms) == (50, ("source/a", ""), None)
    clock = advance(
        clock.progress,
        3,
        WatermarkUpdate("step/b", {"0": 30}),
        WatermarkUpdate("source/a", {"": 60}),
        watermark_rules=watermark_rules,
    )
    assert (clock.after_ms, clock.held_by) == (50, ("step/b", "0"))


def test_steps_behind_are_told_what_they_do_not_know() -> None:
    """They get the watermark, and whether the slot is idle, which a paused one is not; each once."""
    rule = (InputWatermarkRule("source/a", ("",), idle_ms=100),)
    clock = advance(Progress(), 0, watermark_rules=rule)
    assert (clock.is_idle, clock.next_update("step/b", "0")) == (False, None)
    clock = advance(clock.progress, 100, watermark_rules=rule)
    assert clock.next_update("step/b", "0") == WatermarkUpdate("step/b", {"0": None}, idle=True)
    clock = advance(clock.progress, 101, WatermarkUpdate("source/a", {"": 7}), watermark_rules=rule)
    assert clock.next_update("step/b", "0") == WatermarkUpdate("step/b", {"0": 7})
    assert clock.next_update("step/b", "0") is None
    clock = advance(clock.progress, 201, watermark_rules=rule)
    assert clock.next_update("step/b", "0") == WatermarkUpdate("step/b", {"0": 7}, idle=True)
    clock = EventClock(rule, clock.progress, (), 300, paused=True)
    assert clock.next_update("step/b", "0") == WatermarkUpdate("step/b", {"0": 7})
    moved = merge_progress([clock.progress])
    assert moved is not None
    assert advance(moved, 301, watermark_rules=rule).next_update("step/b", "00") == WatermarkUpdate(
        "step/b", {"00": 7}, idle=True
    )
    assert not advance(
        Progress(), 0, watermark_rules=(InputWatermarkRule("source/a", (), by_arrival=True),)
    ).is_idle


def test_the_end_is_for_one_micro_batch() -> None:
    """Records of a later run of the job are not late."""
    clock = advance(Progress(), 0, WatermarkUpdate("source/readings", {"0": 5, "1": 6}))
    clock = advance(clock.progress, 1, WatermarkUpdate("", {}, ends=True))
    assert (clock.before_ms, clock.after_ms, clock.progress.watermark_ms) == (5, END_MS, 5)


def test_what_is_kept_is_plain_data() -> None:
    progress = advance(Progress(), 3, WatermarkUpdate("source/readings", {"0": -5})).progress
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=Progress) == progress


def test_slots_agree_on_the_min_when_they_are_divided_otherwise() -> None:
    one = Progress({"source/a": {"": (5, 10)}, "step/b": {"00000": (1, 1)}}, 4)
    other = Progress({"source/a": {"": (3, 20)}}, 3)
    assert merge_progress([one, None, other]) == Progress({"source/a": {"": (3, 20)}}, 3)
    assert merge_progress([one, Progress()]) == Progress({"source/a": {"": (5, 10)}}, None)
    assert merge_progress([None]) is None


@given(st.lists(st.lists(st.tuples(st.sampled_from("01"), st.integers(-9, 9)), max_size=4), max_size=6))
def test_it_does_not_matter_which_task_told_what(batches: list[list[tuple[str, int]]]) -> None:
    """Ticks of a micro-batch may come in any order and division."""
    straight, turned = Progress(), Progress()
    for number, batch in enumerate(batches):
        updates = [WatermarkUpdate("source/readings", {name: at}) for name, at in batch]
        newest = {name: max(at for other, at in batch if other == name) for name, _ in batch}
        one = advance(straight, number, *updates)
        other = advance(turned, number, *([WatermarkUpdate("source/readings", newest)] if newest else []))
        assert (one.after_ms, one.progress) == (other.after_ms, other.progress)
        assert one.before_ms is None or (one.after_ms is not None and one.after_ms >= one.before_ms)
        straight, turned = one.progress, other.progress
