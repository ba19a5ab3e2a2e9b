"""Value hashes: 63-bit hashes of values, the same on every machine and in every run, for single values and columns.

The hash is XXH64 with seed 0, like that of keys, without its last bit, so every format can hold it as an integer. Its
input is 8 bytes, little endian, for an integer or a boolean, for a date as days and a timestamp as microseconds since
1970, and for a floating-point number as a double; the UTF-8 bytes for text; and the bytes themselves for bytes. Zeros
of both signs are the same value, and so are all NaN. A member of an enumeration counts as its value.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.base.instants import EPOCH
from penstock.state.key_groups import key_hashes

__all__ = ["BITS", "can_be_hashed", "column_hashes", "value_hash"]

BITS: Final = 63
"""The number of bits of a hash: it is at least 0 and less than 2 to the power of this."""

_FIRST_DAY: Final = EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_MASK: Final = (1 << 64) - 1


def can_be_hashed(kind: pa.DataType) -> bool:
    """Return whether the values of a type have a hash."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit == "us")
    )


def value_hash(value: Any) -> int:
    """Return the hash of a value."""
    if isinstance(value, enum.Enum):
        value = value.value
    return xxhash.xxh64_intdigest(_canonical(value)) >> 1


def _canonical(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)
    if isinstance(value, dt.datetime):
        value = (value - EPOCH) // _MICROSECOND
    elif isinstance(value, dt.date):
        value = value.toordinal() - _FIRST_DAY
    found: bytes = (value & _MASK).to_bytes(8, "little")
    return found


def column_hashes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the hash of each value of a column, which must have no nulls."""
    if pa.types.is_floating(column.type):
        # Adding 0.0 turns a negative zero into a positive one.
        numbers = column.cast(pa.float64()).to_numpy() + 0.0
        numbers[np.isnan(numbers)] = np.nan
        column = pa.array(numbers.view(np.int64))
    elif pa.types.is_uint64(column.type):
        column = column.cast(pa.int64(), safe=False)
    found: npt.NDArray[np.int64] = (key_hashes(column) >> np.uint64(1)).astype(np.int64)
    return found
