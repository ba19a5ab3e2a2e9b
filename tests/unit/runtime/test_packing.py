"""Packed rows: they are unpacked unchanged, in order, in batches of bounded size."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.receipts import StepTime
from penstock.runtime import packed_rows
from penstock.runtime.packed_rows import (
    COUNTS,
    PACKED_SCHEMA,
    TIME,
    PackedRow,
    counts_row,
    from_bytes,
    packed_batches,
    split_by_key_group,
    time_of,
    time_row,
    to_bytes,
)
from penstock.runtime.slots import slots_of_key_groups
from penstock.runtime.writer import unpacked_rows

ROWS = st.builds(
    PackedRow,
    destination=st.text(st.characters(codec="utf-8"), max_size=8),
    key_group=st.integers(0, 32767),
    input=st.integers(0, 5),
    partition=st.text(st.characters(codec="utf-8"), max_size=8),
    first_offset=st.integers(-(2**63), 2**63 - 1),
    body=st.binary(max_size=60),
)
SLOTS = slots_of_key_groups(32768, 5)
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("list", pa.list_(pa.int32())),
        pa.field("both", pa.struct([("a", pa.float64()), ("b", pa.bool_())])),
    ]
)
RECORDS = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "data": st.none() | st.binary(max_size=5),
        "list": st.none() | st.lists(st.integers(-5, 5), max_size=3),
        "both": st.none() | st.fixed_dictionaries({"a": st.floats(allow_nan=False), "b": st.booleans()}),
    }
)


def plain(rows: list[PackedRow]) -> list[PackedRow]:
    """Rows with their bodies as bytes, to compare them."""
    return [row._replace(body=bytes(row.body)) for row in rows]


@given(rows=st.lists(ROWS, max_size=20), batch_bytes=st.integers(1, 200))
def test_rows_survive_packing(rows: list[PackedRow], batch_bytes: int) -> None:
    """A batch is passed on as soon as it has reached its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "_BATCH_BYTES", batch_bytes)
        batches = list(packed_batches(iter(rows), SLOTS))
    assert all(batch.schema == PACKED_SCHEMA for batch in batches)
    assert plain(list(unpacked_rows(batches))) == rows
    assert [slot for batch in batches for slot in batch.column("slot").to_pylist()] == [
        SLOTS[row.key_group] for row in rows
    ]
    for batch in batches:
        sizes = [len(body) for body in batch.column("body").to_pylist()]
        assert sum(sizes[:-1]) < batch_bytes, "the last row made it full"
    for batch in batches[:-1]:
        assert sum(len(body) for body in batch.column("body").to_pylist()) >= batch_bytes


def test_bodies_may_be_any_buffer() -> None:
    """Shuffled rows hold buffers, new ones Arrow buffers, and counts bytes."""
    kinds = [b"abc", pa.py_buffer(b"abc"), memoryview(b"abc")]
    rows = [PackedRow("d", 0, 0, "p", n, body) for n, body in enumerate(kinds)]
    assert [row.body for row in plain(list(unpacked_rows(packed_batches(rows, SLOTS))))] == [b"abc"] * 3


def test_nothing_makes_no_batch() -> None:
    """Without rows there is no batch, so Spark never handles an empty one."""
    assert list(packed_batches([], SLOTS)) == []


@given(
    records=st.lists(RECORDS, max_size=12),
    start=st.integers(0, 12),
    length=st.integers(0, 12),
)
def test_a_block_survives_as_bytes(records: list[dict[str, object]], start: int, length: int) -> None:
    """A batch without its schema is restored equal, also when it is a slice."""
    batch = pa.RecordBatch.from_pylist(records, SCHEMA).slice(start, length)
    again = from_bytes(to_bytes(batch), SCHEMA)
    again.validate(full=True)
    assert again.equals(batch)


def test_a_slice_carries_only_its_own_rows() -> None:
    """A key group's block is a slice of a chunk, and does not carry the whole chunk."""
    record = {"number": 1, "text": "abc", "data": b"abc", "list": [1], "both": {"a": 1.0, "b": True}}
    batch = pa.RecordBatch.from_pylist([record] * 10_000, SCHEMA)
    assert to_bytes(batch.slice(5_000, 2)).size < 2_000 < to_bytes(batch).size


@given(data=st.data(), count=st.integers(1, 40))
def test_split_by_key_group_is_a_stable_grouping(data: st.DataObject, count: int) -> None:
    """Each group that has records comes once, in the order of the groups, with its records in theirs."""
    groups = data.draw(st.lists(st.integers(0, count - 1), max_size=60))
    batch = pa.RecordBatch.from_pydict(
        {"row": list(range(len(groups))), "text": [str(group) for group in groups]}
    )
    expected: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        expected.setdefault(group, []).append(row)
    found = list(split_by_key_group(batch, np.array(groups, np.uint16), count))
    assert [group for group, _ in found] == sorted(expected)
    assert {group: part.column("row").to_pylist() for group, part in found} == expected
    assert all(set(part.column("text").to_pylist()) == {str(group)} for group, part in found)


def test_a_count_is_a_row() -> None:
    """Counts travel like blocks, under their key group."""
    row = counts_row("keys", "thermostat", 7, 3)
    assert (row.destination, row.key_group) == (COUNTS, 3)
    assert msgspec.msgpack.decode(row.body) == ["keys", "thermostat", 3, 7, b""]


def test_a_time_is_a_row_of_a_count() -> None:
    """The count has a slot's watermark, and what holds it back."""
    row = time_row("thermostat", 3, StepTime(-5, "readings/0"))
    kind, name, slot, _, body = msgspec.msgpack.decode(row.body)
    assert (row.destination, kind, name, slot) == (COUNTS, TIME, "thermostat", 3)
    assert time_of(body) == StepTime(-5, "readings/0")
