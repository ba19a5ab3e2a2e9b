"""Count the words of the last five seconds, every second."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Line:
    """A line of text."""

    text: str


@dataclass
class Word:
    """A word in lower case."""

    word: str


@dataclass
class Total:
    """The number of occurrences of a word."""

    count: int


def words(line: Line) -> Iterator[Word]:
    for word in re.findall(r"\w+", line.text.lower()):
        yield Word(word)


class Count(ps.AggregateFunction[Word, int, Total]):
    """Counts words."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Word, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> Total:
        return Total(accumulator)


job = ps.Job("wordcount")
lines = job.data_stream("lines", schema=Line)

by_word = lines.flat_map(words).key_by("word")
windows = by_word.window(ps.SlidingWindows("5s", "1s", time="processing"))
windows.aggregate("count", Count()).sink_to("counts")
