"""The stored tables of a slot: what was put is found again, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.state.group_tables import GroupTables

PUTS = st.lists(st.tuples(st.integers(0, 32767), st.integers(0, 2**40) | st.just(0), st.binary(max_size=40)))


@given(rounds=st.lists(PUTS, max_size=4))
def test_tables_are_found_again(rounds: list[list[tuple[int, int, bytes]]]) -> None:
    """The last table put for a key group counts, over any number of dumps; the bytes do not depend on the order."""
    model: dict[int, tuple[int, bytes]] = {}
    stored = None
    for puts in rounds:
        tables = GroupTables(stored)
        assert not tables.changed
        for key_group, keys, table in puts:
            tables.put(key_group, keys, table)
            model[key_group] = (keys, table)
            if not keys:
                del model[key_group]
        assert tables.changed == bool(puts)
        assert tables.keys == sum(keys for keys, _ in model.values())
        stored = tables.dump()
        again = GroupTables(None)
        for key_group, (keys, table) in reversed(model.items()):
            again.put(key_group, keys, table)
        assert again.dump() == stored
    found = GroupTables(stored)
    for key_group in range(0, 32768, 1 if len(model) < 3 else 977):
        expected = model.get(key_group)
        table = found.table(key_group)
        assert (None if table is None else bytes(table)) == (None if expected is None else expected[1])
    for key_group, (_, table) in model.items():
        assert bytes(found.table(key_group)) == table  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [b"", b"nonsense", GroupTables(None).dump()[:40]])
def test_what_cannot_be_read_is_said(stored: bytes) -> None:
    """Damaged bytes end the job with a sentence."""
    with pytest.raises(StateError, match="cannot be read"):
        GroupTables(stored)
