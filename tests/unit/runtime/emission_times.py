"""Streams of visits and the words that steps emit for them, to check their event times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from domains import Visit, ms_of

import penstock as ps
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

__all__ = [
    "Look",
    "Seen",
    "ToWord",
    "Word",
    "count_windows",
    "counts_of",
    "look",
    "run_visits",
    "times_of",
    "visits_of",
    "words_of",
]


@dataclass
class Word:
    """A record without a time of its own."""

    key: str
    text: str


@dataclass
class Seen:
    """What a later step has seen: the word and its event time."""

    key: str
    text: str
    ms: int | None


class Look(ps.ProcessFunction):
    """Emits the event time of each record."""

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(record.key, record.text, ms_of(ctx.event_time))


class ToWord(ps.ProcessFunction):
    """One word for each visit."""

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Word]:
        yield Word(visit.user, f"{visit.number}")


def visits_of(
    job: ps.Job, event_time: str = "at", bound: str = "0s", name: str = "visits"
) -> ps.DataStream[Visit]:
    """Return a stream of visits with watermarks."""
    strategy = None if event_time == ps.INGESTION_TIME else ps.Watermarks.bounded(bound)
    return job.data_stream(name, schema=Visit, event_time=event_time, watermarks=strategy)


def words_of(stream: ps.DataStream[Visit]) -> ps.ProcessedStream:
    """Return a keyed step's output for visits: a word each, with a time that is in none of its fields."""
    return stream.key_by("user").process("words", ToWord())


def look(words: ps.DataStream, name: str = "look") -> None:
    """Return a step that checks the times of words, with a sink of the same name."""
    words.key_by("key").process(name, Look()).sink_to(name)


def count_windows(stream: ps.KeyedStream, name: str, size: str = "10ms") -> None:
    """Return counts of tumbling windows, with a sink of the same name."""
    stream.window(ps.TumblingWindows(size)).count(name).sink_to(name)


def run_visits(job: BatchRunner, *visits: Visit, ends: bool = False) -> BatchOutcome:
    return job.run({"visits": [("p", visits)]} if visits else {}, ends=ends)


def times_of(outcome: BatchOutcome, sink: str = "look") -> list[tuple[str, int | None]]:
    """Return the words that the later step has seen, with their times; sorted."""
    found = [(one.text, one.ms) for one in outcome.output(sink)]
    return sorted(found, key=lambda one: (one[0], one[1] is None, one[1]))


def counts_of(outcome: BatchOutcome, sink: str) -> list[tuple[int | None, float]]:
    """Return the starts and results of the windows that have fired."""
    return [(ms_of(one.window_start), one.value) for one in outcome.output(sink)]
