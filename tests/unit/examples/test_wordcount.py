"""The word counts equal those of Python's Counter, over the whole text and over its windows."""

from __future__ import annotations

import datetime as dt
import difflib
import random
import re
from collections import Counter

import pytest
from example_jobs import EXAMPLES, loaded

from penstock.testing.batch_runner import NOW, BatchRunner

BATCH, batch_job = loaded("wordcount", "batch_job")
WINDOWED, windowed_job = loaded("wordcount", "windowed_job")

TEXT = "To be, or not to be: that is the question! Schön"
SECOND = dt.timedelta(seconds=1)


def lines(seed: int) -> list[str]:
    numbers = random.Random(seed)
    return [
        " ".join(numbers.choices(TEXT.split(), k=numbers.randint(0, 8)))
        for _ in range(numbers.randint(1, 30))
    ]


def counted(text: list[str]) -> Counter[str]:
    return Counter(word.strip(",:!").lower() for line in text for word in line.split())


@pytest.mark.parametrize("seed", range(5))
def test_the_batch_job_counts_all_words_when_the_text_has_ended(seed: int) -> None:
    """It emits nothing earlier, in however many micro-batches the text comes."""
    job = BatchRunner(BATCH, parallelism=2)
    texts = [lines(100 * seed + part) for part in range(3)]
    for part, text in enumerate(texts):
        result = job.run({"lines": [("", [batch_job.Line(line) for line in text])]}, seed=part)
        assert not result.output("counts")
        job.now += SECOND
    found = job.run({}, ends=True).output("counts")
    assert {one.word: one.count for one in found} == sum(map(counted, texts), Counter())
    assert {(one.window_start, one.window_end) for one in found} == {(None, None)}


@pytest.mark.parametrize("seed", range(5))
def test_the_windowed_job_counts_the_words_of_five_seconds_every_second(seed: int) -> None:
    """A window fires when the clock has passed its end, even without input; the last ones at the end of the
    text.
    """
    job = BatchRunner(WINDOWED, parallelism=2)
    came: list[tuple[dt.datetime, Counter[str]]] = []
    found = []
    for tick in range(40):
        job.now = NOW + tick * SECOND / 4
        text = lines(100 * seed + tick) if tick % 3 == 0 else []
        came.append((job.now, counted(text)))
        result = job.run({"lines": [("", [windowed_job.Line(line) for line in text])]} if text else {})
        assert all(one.window_end <= job.now for one in result.output("counts"))
        found += result.output("counts")
    found += job.run({}, ends=True).output("counts")
    wanted = {}
    for start in (NOW + number * SECOND for number in range(-5, 11)):
        parts = [words for at, words in came if start <= at < start + 5 * SECOND]
        for word, count in sum(parts, Counter()).items():
            wanted[word, start] = count
    assert {(one.word, one.window_start): one.count for one in found} == wanted
    assert len(found) == len(wanted)
    assert {one.window_end - one.window_start for one in found} == {5 * SECOND}


def test_the_two_jobs_differ_by_one_line() -> None:
    """Their descriptions differ too."""
    files = [EXAMPLES / "wordcount" / name for name in ("batch_job.py", "windowed_job.py")]
    differing = [
        line
        for line in difflib.ndiff(*(file.read_text().splitlines() for file in files))
        if re.match(r"[-+] ", line) and '"""' not in line
    ]
    assert [line[:11] for line in differing] == ["- windows =", "+ windows ="]
