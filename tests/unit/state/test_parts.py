"""Parts: one fixed key for each key group, which hashes to that group."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.state.key_groups import key_groups
from penstock.state.parts import part_keys, part_of


@pytest.mark.parametrize("count", [1, 2, 7, 128, 1000, 32768])
def test_the_key_of_a_part_is_hashed_to_it(count: int) -> None:
    """So the key group of a row follows from its key, as for all rows."""
    keys = part_keys(count)
    assert key_groups(pa.array(keys), count).tolist() == list(range(count))
    assert min(keys) == 0


def test_keys_and_parts_never_change() -> None:
    """Stored state depends on them."""
    assert part_keys(8) == (2, 3, 10, 0, 9, 1, 8, 11)
    assert [part_of("readings", name, 128) for name in ("00000", "00001", "a.jsonl")] == [94, 107, 79]
