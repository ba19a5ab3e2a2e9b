"""Kinds of runs whose sources and sinks are topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from life import Action, Scenario
from run_kinds import (
    FEED,
    KINDS,
    LATE_STOP,
    RESCALE_1,
    RESCALE_3,
    SAVEPOINT,
    SEND,
    STOP,
    TURN,
    adjustments,
    make_run,
    make_story,
    readings,
)

__all__ = ["ALL_KINDS", "EXACTLY_ONCE", "MAIN_TOPICS", "TOPIC_KINDS", "on_topics"]

EXACTLY_ONCE = "delivery=exactly-once"

MAIN_TOPICS = "a topic, an exactly-once topic"


def on_topics(topics: Iterable[str], **options: str) -> dict[str, Any]:
    """Return a scenario's options for topics; sinks are exactly-once unless it says otherwise."""
    names = frozenset(topics)
    sinks = names & {"totals", "thirds", "doubled", "sums", "reminders", "receipts", "dead-letters"}
    return {"topics": names, "topic_options": {**dict.fromkeys(sinks, EXACTLY_ONCE), **options}}


_BOTH = on_topics(["readings", "totals"])
_AT_MIN_ONCE = "delivery=at-least-once"

_FEED_A, _FEED_B = Action("feed", stream="readings-a"), Action("feed", stream="readings-b")
_APPEARS = Action("appear", stream="readings-b", partitions=3)
_BY_PATTERN = {"readings": "~readings-[a-z]"}


def _two_topics(first: Sequence[int], second: Sequence[int]) -> dict[str, Any]:
    """Return a scenario's options for two topics that match a pattern, whose files have this many records."""
    files = readings([*first, *second])
    a, b = files[: len(first)], files[len(first) :]
    feed = {"readings": files, "readings-a": a, "readings-b": b}
    return {"feed": feed, **on_topics(["readings-a", "doubled", "sums"])}


TOPIC_KINDS: dict[str, Scenario] = {
    MAIN_TOPICS: make_story("counts", make_run(FEED, TURN, FEED, TURN, FEED), files=(4, 4, 3), **_BOTH),
    "a topic, a folder": make_story("counts", make_run(FEED, TURN, FEED, TURN), **on_topics(["readings"])),
    "a folder, an exactly-once topic": make_story(
        "counts", make_run(FEED, TURN, FEED, TURN), **on_topics(["totals"])
    ),
    "an at-least-once topic": make_story(
        "counts",
        make_run(FEED, TURN, FEED, TURN),
        **on_topics(["readings", "totals"], totals=_AT_MIN_ONCE),
    ),
    "a folder and an exactly-once topic": make_story(
        "two-sinks", make_run(FEED, TURN, FEED, TURN), files=(12, 9), **on_topics(["readings", "thirds"])
    ),
    "two exactly-once topics": make_story(
        "two-sinks",
        make_run(FEED, TURN, FEED, LATE_STOP),
        make_run(),
        files=(12, 9),
        **on_topics(["thirds", "totals"]),
    ),
    "topics, three runs": make_story(
        "counts", make_run(FEED, TURN, STOP), make_run(FEED, LATE_STOP), make_run(bounded=True), **_BOTH
    ),
    "topics, a stop during start": make_story(
        "counts", make_run(FEED, TURN, FEED, LATE_STOP), make_run(early_stop=True), make_run(), **_BOTH
    ),
    "topics, one bounded run": make_story("counts", make_run(FEED, FEED, TURN, bounded=True), **_BOTH),
    "a topic in small micro-batches": make_story(
        "counts",
        make_run(FEED, TURN, FEED),
        **on_topics(["readings", "totals"], readings="max_records_per_batch=6"),
    ),
    "topics of commands and receipts": make_story(
        "counts",
        make_run(FEED, SEND, TURN, SEND, FEED, TURN),
        commands=adjustments(2),
        **on_topics(["readings", "commands", "receipts"]),
    ),
    "at-least-once receipts": make_story(
        "counts",
        make_run(FEED, SEND, TURN, SEND, FEED),
        commands=adjustments(2),
        **on_topics(["commands", "receipts"], receipts=_AT_MIN_ONCE),
    ),
    "a topic without keyed steps": make_story(
        "stateless", make_run(FEED, TURN, FEED, TURN), **on_topics(["readings", "doubled"])
    ),
    "partitions added": make_story(
        "stateless",
        make_run(FEED, TURN, Action("grow", partitions=4), FEED, TURN, FEED),
        files=(4, 5, 4),
        **on_topics(["readings", "doubled"]),
    ),
    "partitions added, windows": make_story(
        "windows",
        make_run(FEED, TURN, Action("grow", partitions=4), FEED, TURN, STOP),
        make_run(FEED, bounded=True),
        files=(4, 5, 4),
        **on_topics(["readings", "sums"]),
    ),
    "a topic of a pattern appears": make_story(
        "stateless",
        make_run(_FEED_A, TURN, _APPEARS, _FEED_B, _FEED_A, TURN, _FEED_B, bound=_BY_PATTERN),
        **_two_topics((4, 3), (4, 2)),
    ),
    "a topic of a pattern appears, windows, two runs": make_story(
        "windows",
        make_run(_FEED_A, TURN, _APPEARS, _FEED_B, TURN, STOP, bound=_BY_PATTERN),
        make_run(_FEED_A, _FEED_B, bounded=True, bound=_BY_PATTERN),
        **_two_topics((4, 3), (4, 2)),
    ),
    "a topic, then a pattern": make_story(
        "windows",
        make_run(_FEED_A, TURN, STOP, bound={"readings": "readings-a"}),
        make_run(_APPEARS, _FEED_A, _FEED_B, TURN, bound=_BY_PATTERN),
        make_run(bounded=True, bound=_BY_PATTERN),
        **_two_topics((4, 5), (3,)),
    ),
    "topics, dead letters": make_story(
        "counts",
        make_run(FEED, TURN, FEED, TURN),
        files=(4, 4),
        bad=5,
        **on_topics(["readings", "totals", "dead-letters"]),
    ),
    "topics, rescaled up": make_story("counts", make_run(FEED, TURN, RESCALE_3, FEED, TURN), **_BOTH),
    "topics, rescaled down": make_story(
        "counts", make_run(FEED, TURN, RESCALE_1, FEED, TURN), parallelism=3, **_BOTH
    ),
    "topics, a savepoint": make_story(
        "counts",
        make_run(FEED, TURN, SAVEPOINT),
        make_run(FEED, TURN, checkpoint="second", from_savepoint=True),
        **_BOTH,
    ),
}

ALL_KINDS = {**KINDS, **TOPIC_KINDS}
