"""`exchange` gives each record the value before it, as a dictionary would, for few keys and for more than 16
bits count.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.exchanges import Exchange


@pytest.mark.parametrize("first_key", [0, 65_530, 65_536, 1 << 40])
@given(keys=st.lists(st.integers(0, 9), max_size=30))
def test_each_record_finds_what_the_one_before_it_has_set(first_key: int, keys: list[int]) -> None:
    """It is the key's stored value or what the previous record set; the last record of each key is known."""
    indices = np.array(keys, np.int64) + first_key
    values = np.arange(len(keys)) * 10
    # Keys start at a large number, without an array of that size.
    held = np.arange(10) - 100
    exchange = Exchange(indices)
    exchange._first_keys -= first_key  # type: ignore[misc]
    found = exchange.before(held, values)
    known = dict(enumerate(held.tolist()))
    last: dict[int, int] = {}
    for number, key in enumerate(keys):
        assert found[number] == known[key]
        known[key] = int(values[number])
        last[key] = number
    assert exchange.last.tolist() == [last[key] for key in sorted(last)]
