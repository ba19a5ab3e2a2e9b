"""Parts: into what the records of a step without a key are divided, by their places and not by what they hold.

The part of a record follows from its stream and source partition, so that the records of a source partition stay
together and in order. Each key group is one part, and so parts move between tasks as key groups do. What a part holds
is a row of the step's table like that of a key: its key is the smallest integer, from 0 on, that is hashed to the
part's key group. So whoever finds the key group of a row by its key finds the right one.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from penstock.state.key_groups import key_groups

__all__ = ["PART_KEY_TYPE", "part_keys", "part_of"]

PART_KEY_TYPE: Final = pa.int64()


def part_of(stream: str, partition: str, count: int) -> int:
    """The part of the records of a source partition, where there are `count` key groups."""
    return xxhash.xxh64_intdigest(f"{stream}/{partition}".encode()) % count


@functools.lru_cache(maxsize=8)
def part_keys(count: int) -> tuple[int, ...]:
    """The key of the row of each part."""
    found: dict[int, int] = {}
    start, tried = 0, 4 * count + 64
    while len(found) < count:
        groups = key_groups(pa.array(np.arange(start, start + tried)), count)
        parts, first = np.unique(groups, return_index=True)
        for part, place in zip(parts.tolist(), first.tolist(), strict=True):
            found.setdefault(part, start + place)
        start += tried
    return tuple(found[part] for part in range(count))
