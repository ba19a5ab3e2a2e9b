"""Key groups: the fixed, stable mapping of keys to the units in which keyed state is distributed.

The hash is XXH64 with seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) over a canonical
form of the key. The key group is that hash modulo the number of key groups. It is the same on every machine, Python
version and run. A change would orphan all state, so tests compare it with fixed vectors.

Canonical form: an integer or boolean is 8 bytes, two's complement, little endian; text is its UTF-8 bytes; bytes
are themselves; a date or timestamp is its integer; a key of several fields is the canonical forms of the fields, each
preceded by its length as 4 bytes, little endian.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.errors import SchemaError

__all__ = [
    "DEFAULT_KEY_GROUPS",
    "MAX_KEY_GROUPS",
    "check_key_type",
    "key_codes",
    "key_groups",
    "key_hashes",
    "order_groups",
]

DEFAULT_KEY_GROUPS: Final = 128
MAX_KEY_GROUPS: Final = 32768

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_CACHED: Final = 8192
# Up to this many values, a call for each is faster than arithmetic on columns.
_FEW: Final = 256
_SEED: Final = np.uint64((0x27D4EB2F165667C5 + 8) & 0xFFFFFFFFFFFFFFFF)


def check_key_type(key_type: pa.DataType) -> pa.DataType:
    """Return the stored type of keys of `key_type`: int64 for integers. Raises SchemaError if it cannot be a key."""
    if pa.types.is_integer(key_type) or pa.types.is_boolean(key_type):
        return pa.int64()
    if pa.types.is_string(key_type) or pa.types.is_binary(key_type):
        return key_type
    if pa.types.is_date32(key_type) or pa.types.is_timestamp(key_type):
        return key_type
    if pa.types.is_struct(key_type):
        return pa.struct([pa.field(f.name, check_key_type(f.type), nullable=False) for f in key_type])
    raise SchemaError(
        f"{key_type} cannot be a key. Use an integer, text, bytes, a date, or several such fields."
    )


def key_groups(keys: pa.Array, count: int) -> npt.NDArray[np.uint16]:
    """Return the key group of each key; keys must not be null."""
    if len(keys) <= _FEW and keys.type.equals(pa.int64()):
        return np.array([_hash_integer(key) % count for key in keys.to_pylist()], np.uint16)
    hashes = key_hashes(keys)
    if count & (count - 1) == 0:
        # For a power of two the remainder is the low bits, and a mask is several times faster than a division.
        return (hashes & np.uint64(count - 1)).astype(np.uint16)
    return (hashes % np.uint64(count)).astype(np.uint16)


def key_hashes(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the XXH64 hash of each key's canonical form."""
    if _is_integral(keys.type):
        return _hash_integers(_as_integers(keys))
    # Keys repeat, so only the distinct ones are hashed.
    if pa.types.is_struct(keys.type):
        parts = [_canonical(child) for child in keys.flatten()]
        joined = [b"".join(struct.pack("<I", len(p)) + p for p in row) for row in zip(*parts, strict=True)]
        keys = pa.array(joined, pa.binary())
    encoded = keys.dictionary_encode()
    hashes = np.array([xxhash.xxh64_intdigest(_bytes(v)) for v in encoded.dictionary.to_pylist()], np.uint64)
    found: npt.NDArray[np.uint64] = hashes[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def key_codes(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a 64-bit code for each key: its own bits if it is integral, otherwise its hash."""
    return _as_integers(keys) if _is_integral(keys.type) else key_hashes(keys)


def _is_integral(key_type: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_timestamp)
    return any(is_kind(key_type) for is_kind in kinds)


def _as_integers(keys: pa.Array) -> npt.NDArray[np.uint64]:
    if pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    if keys.type != pa.int64():
        keys = keys.cast(pa.int64())
    values: npt.NDArray[np.int64] = keys.to_numpy(zero_copy_only=False)
    return values.view(np.uint64)


def _canonical(column: pa.Array) -> list[bytes]:
    if _is_integral(column.type):
        data = _as_integers(column).astype("<u8").tobytes()
        return [data[i : i + 8] for i in range(0, len(data), 8)]
    return [_bytes(value) for value in column.to_pylist()]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _rotate(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _hash_integer(value: int) -> int:
    return xxhash.xxh64_intdigest(value.to_bytes(8, "little", signed=True))


def _hash_integers(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return XXH64 of each value's 8 bytes for a whole column; the xxhash library takes one value per call."""
    if len(values) <= _FEW:
        return np.array([_hash_integer(value) for value in values.view(np.int64).tolist()], np.uint64)
    hashes = np.empty(len(values), np.uint64)
    # Pieces that fit into the processor's cache with their temporaries are 5 times as fast as the whole column.
    for start in range(0, len(values), _CACHED):
        hashes[start : start + _CACHED] = _hash_piece(values[start : start + _CACHED])
    return hashes


def _hash_piece(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    h = _SEED ^ (_rotate(values * _P2, 31) * _P1)
    h = _rotate(h, 27) * _P1 + _P4
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


def order_groups(
    groups: npt.NDArray[np.uint16],
) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """Return the order of rows by key group, and the start and end of each group in it."""
    order = np.argsort(groups, kind="stable")
    found, starts = np.unique(groups[order], return_index=True)
    ends = [*starts[1:].tolist(), len(groups)]
    return order, list(zip(found.tolist(), starts.tolist(), ends, strict=False))
