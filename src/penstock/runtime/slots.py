"""Slots: which task of a keyed level serves which key groups.

All packed rows for one task have the same Spark key, so Spark passes them in one call, together with the states of all
steps. A step's key groups are spread over the slots in ranges, as in Flink. Spark partitions keys by hash. The key of
slot `i` is the smallest integer that hashes to partition `i`, so every task has exactly one slot.
"""

from __future__ import annotations

import functools
import itertools
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.engine.slot import Slot

__all__ = ["first_key_groups", "partition_of", "slot_keys", "slots", "slots_of_key_groups", "spark_hash"]

_MASK: Final = 0xFFFFFFFF


@functools.cache
def slot_keys(parallelism: int) -> tuple[int, ...]:
    """Return the Spark key of the slot of each of `parallelism` partitions."""
    found: dict[int, int] = {}
    for key in itertools.count():
        found.setdefault(spark_hash(key) % parallelism, key)
        if len(found) == parallelism:
            return tuple(found[partition] for partition in range(parallelism))
    raise AssertionError("unreachable")


@functools.cache
def slots_of_key_groups(key_groups: int, parallelism: int) -> npt.NDArray[np.int32]:
    """Return the Spark key of the slot of each key group."""
    keys = slot_keys(parallelism)
    return np.array(
        [keys[partition_of(group, key_groups, parallelism)] for group in range(key_groups)], np.int32
    )


def slots(key_groups: int, parallelism: int) -> dict[int, Slot]:
    """Return the slots by Spark key."""
    found: dict[int, list[int]] = {}
    for group, key in enumerate(slots_of_key_groups(key_groups, parallelism).tolist()):
        found.setdefault(key, []).append(group)
    return {key: Slot(groups, groups[0] == 0) for key, groups in found.items()}


def first_key_groups(key_groups: int, parallelism: int) -> dict[int, int]:
    """Return the first key group of each partition that has any."""
    found: dict[int, int] = {}
    for group in range(key_groups):
        found.setdefault(partition_of(group, key_groups, parallelism), group)
    return found


def partition_of(key_group: int, key_groups: int, parallelism: int) -> int:
    """Return the partition of a key group. Key groups in order have partitions in order.

    >>> [partition_of(group, 4, 2) for group in range(4)]
    [0, 0, 1, 1]
    """
    return key_group * parallelism // key_groups


def spark_hash(value: int) -> int:
    """Return Spark's `hash` of an INT: signed 32-bit Murmur3 with seed 42 (https://github.com/aappleby/smhasher)."""
    h = 42 ^ _mixed(value & _MASK)
    h = (_rotated(h, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & _MASK
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _mixed(k: int) -> int:
    return (_rotated((k * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
