"""Digests: the set of rows of a table, independent of their order, files, batches and format.

Each row has a 128-bit hash, as two integers. A digest is the number of rows and the sum of their hashes. Integers are
mixed with the finaliser of SplitMix64; texts and bytes are hashed with XXH3, once per distinct value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.snapshots.row_sizes import element_spans

__all__ = ["Digest", "Hashes", "row_hashes"]

Hashes: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]

_Words: TypeAlias = npt.NDArray[np.uint64]

# Odd constants with well-mixed bits: fractional parts of square roots of small primes.
_SEEDS: Final = (np.uint64(0x6A09E667F3BCC909), np.uint64(0xBB67AE8584CAA73B))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_M1: Final = np.uint64(0xBF58476D1CE4E5B9)
_M2: Final = np.uint64(0x94D049BB133111EB)
_NULL: Final = np.uint64(0x3C6EF372FE94F82B)
_LIST: Final = np.uint64(0xA54FF53A5F1D36F1)
_ALL: Final = 2**64 - 1
# Pieces that fit into the processor's cache with their temporaries are several times as fast.
_CACHED: Final = 8192


class Digest(msgspec.Struct, frozen=True):
    """The digest of a set of rows. The digest of a whole is the sum of those of its parts."""

    rows: int = 0
    first: int = 0
    second: int = 0

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Digest:
        """Return the digest of all rows of some batches."""
        digest = cls()
        for batch in batches:
            first, second = row_hashes(batch)
            digest += cls(len(batch), int(first.sum(dtype=np.uint64)), int(second.sum(dtype=np.uint64)))
        return digest

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.rows + other.rows, (self.first + other.first) & _ALL, (self.second + other.second) & _ALL
        )

    def hex(self) -> str:
        """Return the digest as 48 hexadecimal digits."""
        return f"{self.rows:016x}{self.first:016x}{self.second:016x}"


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Return two independent hashes of each row, of its values by position; they are the same on any machine."""
    first, second = np.empty(len(batch), np.uint64), np.empty(len(batch), np.uint64)
    for start in range(0, len(batch), _CACHED):
        columns = [column.slice(start, _CACHED) for column in batch.columns]
        part = _combine([_hashes(column) for column in columns], len(columns[0]) if columns else 0)
        first[start : start + _CACHED], second[start : start + _CACHED] = part
    return first, second


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * _M1
    words = (words ^ (words >> np.uint64(27))) * _M2
    return words ^ (words >> np.uint64(31))


def _combine(fields: list[Hashes], rows: int) -> Hashes:
    """Combine the hashes of several fields into one, by position."""
    found = []
    for lane, seed in enumerate(_SEEDS):
        words = np.full(rows, seed, np.uint64)
        for field in fields:
            words = _mix(words * _STEP + field[lane])
        found.append(words)
    return found[0], found[1]


def _hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        nulls = np.full(len(column), _NULL, np.uint64)
        return nulls, nulls.copy()
    if pa.types.is_struct(kind):
        fields = [_hashes(column.field(place)) for place in range(kind.num_fields)]
        found = _combine(fields, len(column))
    elif pa.types.is_nested(kind):
        found = _list_hashes(column)
    elif pa.types.is_decimal(kind):
        data = np.frombuffer(column.buffers()[1], "<u8")
        words = data[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
        found = _combine([_integer_hashes(words[:, 0]), _integer_hashes(words[:, 1])], len(column))
    elif pa.types.is_primitive(kind):
        found = _integer_hashes(_words(column))
    else:
        found = _text_hashes(column)
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        for lane in found:
            lane[missing] = _NULL
    return found


def _integer_hashes(words: _Words) -> Hashes:
    first, second = (_mix(words * _STEP ^ seed) for seed in _SEEDS)
    return first, second


def _words(column: pa.Array) -> _Words:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: npt.NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        # All NaNs count as one value; -0.0 and 0.0 are different values.
        values = np.where(np.isnan(values), np.nan, values).astype(np.float64)
        return values.view(np.uint64)
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def _text_hashes(column: pa.Array) -> Hashes:
    encoded = column.dictionary_encode()
    kind = pa.large_binary() if not pa.types.is_fixed_size_binary(column.type) else column.type
    distinct = encoded.dictionary.cast(kind).to_pylist()
    if not distinct:
        return np.zeros(len(column), np.uint64), np.zeros(len(column), np.uint64)
    digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, distinct)), ">u8").reshape(-1, 2)
    hashes = digests.astype(np.uint64)[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return hashes[:, 0].copy(), hashes[:, 1].copy()


def _list_hashes(column: pa.Array) -> Hashes:
    """Return the hashes of lists or maps, from their elements by position and their lengths."""
    offsets, low, count = element_spans(column)
    lengths = np.diff(offsets)
    places = (np.arange(count) - np.repeat(offsets[:-1], lengths)).astype(np.uint64)
    if pa.types.is_map(column.type):
        parts = [column.keys.slice(low, count), column.items.slice(low, count)]
    else:
        parts = [column.values.slice(low, count)]
    elements = _combine([_hashes(part) for part in parts] + [_integer_hashes(places)], count)
    found = []
    for lane in elements:
        sums = np.zeros(count + 1, np.uint64)
        np.cumsum(lane, out=sums[1:])
        total = sums[offsets[1:]] - sums[offsets[:-1]]
        found.append(_mix(total * _STEP + (lengths.astype(np.uint64) ^ _LIST)))
    return found[0], found[1]
