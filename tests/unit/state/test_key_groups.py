"""Key groups: the hash is XXH64 of a canonical form, stable across processes and versions."""

from __future__ import annotations

import datetime as dt
import os
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.state.key_groups import check_key_type, key_groups, key_hashes

PAIR = pa.struct(
    [pa.field("left", pa.int64(), nullable=False), pa.field("right", pa.string(), nullable=False)]
)
TIME = pa.timestamp("us", tz="UTC")

# Computed once with the XXH64 library over the canonical forms. State is found by these values: when a test
# fails, the code is wrong and not the table.
VECTORS: list[tuple[pa.DataType, Any, int, int]] = [
    (pa.int64(), 0, 0x34C96ACDCADB1BBB, 59),
    (pa.int32(), 1, 0x9F29CB17A2A49995, 21),
    (pa.int64(), -1, 0x85D136ADB773C6C9, 73),
    (pa.int64(), 2**63 - 1, 0xFF70CC60366E770C, 12),
    (pa.int64(), -(2**63), 0x3F425EACF01544E0, 96),
    (pa.bool_(), True, 0x9F29CB17A2A49995, 21),
    (pa.string(), "", 0xEF46DB3751D8E999, 25),
    (pa.string(), "sensor-1", 0x06B265FBFBB6C3C1, 65),
    (pa.string(), "Grüße, 世界 🌍", 0x84DB1D977DB4E538, 56),
    (pa.binary(), b"\x00\xff", 0xE0D97D9A03131D7D, 125),
    (pa.date32(), dt.date(2026, 2, 28), 0x2BC9832AE77963E2, 98),
    (TIME, dt.datetime(2026, 2, 28, 12, tzinfo=dt.UTC), 0x915656962EA15D64, 100),
    (PAIR, {"left": 7, "right": "b"}, 0xF5FF4493A3B1CC55, 85),
]


@pytest.mark.parametrize(("kind", "value", "hash_value", "group"), VECTORS)
def test_fixed_vectors(kind: pa.DataType, value: Any, hash_value: int, group: int) -> None:
    """One value of each kind, alone and in compound keys: its hash, and its key group of 128."""
    for count in (1, 3):
        keys = pa.array([value] * count, kind)
        assert key_hashes(keys).tolist() == [hash_value] * count
        assert key_groups(keys, 128).tolist() == [group] * count
        assert key_groups(keys, 100).tolist() == [hash_value % 100] * count


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_integers_hash_as_the_library_does(values: list[int]) -> None:
    """The NumPy form over a whole column equals the library's over each value's 8 bytes."""
    expected = [xxhash.xxh64_intdigest(struct.pack("<q", value)) for value in values]
    assert key_hashes(pa.array(values, pa.int64())).tolist() == expected


def test_long_columns_hash_in_pieces() -> None:
    """Columns are hashed in pieces; none is skipped."""
    values = np.arange(-20_000, 20_000) * 7919
    expected = [xxhash.xxh64_intdigest(struct.pack("<q", value)) for value in values.tolist()]
    assert key_hashes(pa.array(values)).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"))), max_size=20)
)
def test_several_fields_hash_with_their_lengths(pairs: list[tuple[int, str]]) -> None:
    """Each part is preceded by its length, so that ("ab", "c") and ("a", "bc") differ."""
    keys = pa.array([{"left": left, "right": right} for left, right in pairs], PAIR)
    expected = [
        xxhash.xxh64_intdigest(
            struct.pack("<Iq", 8, left) + struct.pack("<I", len(right.encode())) + right.encode()
        )
        for left, right in pairs
    ]
    assert key_hashes(keys).tolist() == expected


def test_key_groups_do_not_depend_on_the_process() -> None:
    """Python's own hash differs between processes; key groups must not."""
    program = (
        "import pyarrow as pa; from penstock.state.key_groups import key_groups;"
        "print(key_groups(pa.array(['a', 'b', 'room 7']), 128).tolist(), key_groups(pa.array([1, 2, 3]), 100).tolist())"
    )
    outputs = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("0", "4711")
    }
    assert len(outputs) == 1


def test_key_groups_are_even() -> None:
    """No key group of 128 gets more than 1.3 times its share of 100,000 consecutive keys."""
    for keys in (pa.array(range(100_000)), pa.array([f"sensor-{n}" for n in range(100_000)])):
        counts = np.bincount(key_groups(keys, 128), minlength=128)
        assert counts.max() < 1.3 * 100_000 / 128
        assert counts.min() > 0.7 * 100_000 / 128


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64()), pa.decimal128(10, 2), pa.null()])
def test_what_cannot_be_a_key_is_refused(kind: pa.DataType) -> None:
    """The error lists the types that can be keys."""
    with pytest.raises(SchemaError, match=r"cannot be a key\. Use an integer"):
        check_key_type(kind)
    with pytest.raises(SchemaError, match="cannot be a key"):
        check_key_type(pa.struct([("fine", pa.int32()), ("not", kind)]))


def test_integers_are_kept_as_int64() -> None:
    """So a key hashes the same whatever the integer width of its field."""
    assert check_key_type(pa.struct([("a", pa.int8()), ("b", pa.string())])).field("a").type == pa.int64()
    narrow, wide = pa.array([5], pa.int8()), pa.array([5], pa.uint32())
    assert key_hashes(narrow).tolist() == key_hashes(wide).tolist()
