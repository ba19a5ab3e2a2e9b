"""Numbers and rules under integer keys: the input of most tests of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from step_bench import Stream

__all__ = ["KEYS", "NUMBERS", "Number", "Rule", "numbers_in"]


@dataclass
class Number:
    key: int
    value: int


@dataclass
class Rule:
    key: int
    factor: int


def numbers_in(records: Sequence[Number]) -> Stream:
    """Return a data stream of numbers from one partition."""
    return Stream("numbers", Number, partitions={"a": list(records)})


KEYS = st.integers(0, 3)
NUMBERS = st.dictionaries(
    st.sampled_from(["a", "b"]), st.lists(st.builds(Number, KEYS, st.integers(0, 15)), max_size=12)
)
