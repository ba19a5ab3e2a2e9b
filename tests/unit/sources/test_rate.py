"""The rate source: the same period gives the same numbers, each once, however micro-batches divide it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.types import RateBinding
from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.sources.rate import RateLog, check_schema


@dataclass
class Tick:
    number: int


@dataclass
class Other:
    number: int
    name: str


KIND = record_type(Tick)


def log(rate: int = 200) -> RateLog:
    return RateLog(RateBinding("ticks", f"rate:{rate}", rate))


def numbers(found: RateLog, start: int, end: int, parallelism: int = 2) -> list[int]:
    chunks = list(found.read(found.splits(start, end, parallelism), KIND))
    assert all(chunk.batch is not None and chunk.batch.column(0) == chunk.offsets for chunk in chunks)
    return [n for chunk in chunks for n in chunk.offsets.to_pylist()]


@given(
    rate=st.integers(1, 100_000),
    start=st.integers(1, 1 << 42),
    lengths=st.lists(st.integers(0, 1500), max_size=6),
    parallelism=st.integers(1, 5),
)
def test_every_number_comes_once(rate: int, start: int, lengths: list[int], parallelism: int) -> None:
    """This holds however the time is divided into micro-batches and tasks."""
    found, place, end = [], start, start
    for length in lengths:
        end = place + length
        found += numbers(log(rate), place, end, parallelism)
        place = end
    assert found == [
        n
        for n in range(start * rate // 1000, end * rate // 1000 + 1)
        if start * rate <= n * 1000 < end * rate
    ]


def test_it_goes_by_the_clock() -> None:
    """A new job starts one second back; numbers due during downtime are read in portions of bounded size."""
    found = log(200)
    now = found.latest(0, limited=True)
    assert abs(now - time.time() * 1000) < 10_000
    assert len(numbers(found, 0, now)) == 200
    assert found.latest(now, limited=True) >= now
    long_ago = now - 10**10
    assert found.latest(long_ago, limited=True) == long_ago + 10**7
    assert found.latest(long_ago, limited=False) >= now
    assert found.latest(now + 10**9, limited=True) == now + 10**9
    assert found.lag(now) == {}


def test_a_bounded_run_ends() -> None:
    """It ends at the time of its start."""
    found = log()
    found.freeze()
    end = found.latest(1, limited=False)
    time.sleep(0.01)
    assert found.latest(1, limited=False) == end


def test_records_are_numbers() -> None:
    """Any other schema is refused, naming the remedy."""
    check_schema("ticks", KIND)
    for schema in (Other, "number double", "number int"):
        with pytest.raises(BindingError, match="one field of the type int"):
            check_schema("ticks", record_type(schema))
