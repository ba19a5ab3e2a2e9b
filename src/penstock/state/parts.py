"""Parts: the divisions of a step without a key. Its records are divided by their source, not by their content.

The part of a record is determined by its stream and source partition, so the records of a source partition stay
together and in order. Each key group is one part, so parts move between tasks like key groups. The state of a part is a
row of the step's table, like that of a key. Its key is the smallest non-negative integer that hashes to the part's key
group, so the key group of a row always follows from its key.
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
    """Return the part of a source partition's records, given `count` key groups."""
    return xxhash.xxh64_intdigest(f"{stream}/{partition}".encode()) % count


@functools.lru_cache(maxsize=8)
def part_keys(count: int) -> tuple[int, ...]:
    """Return the row key of each part."""
    found: dict[int, int] = {}
    start, tried = 0, 4 * count + 64
    while len(found) < count:
        groups = key_groups(pa.array(np.arange(start, start + tried)), count)
        parts, first = np.unique(groups, return_index=True)
        for part, place in zip(parts.tolist(), first.tolist(), strict=True):
            found.setdefault(part, start + place)
        start += tried
    return tuple(found[part] for part in range(count))
