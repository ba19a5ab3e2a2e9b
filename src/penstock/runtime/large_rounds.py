"""Large rounds: the records of many blocks as one, ordered by key group, so that each group's state is used once.

The state of the keys of one key group fits into a processor's cache; that of a slot does not. A large round in real
time takes a block of each reading, and each has records of all key groups.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.record_blocks import Block, join_blocks

__all__ = ["by_key_group"]

# The values of fewer records stay in the cache between blocks.
_MANY_RECORDS: Final = 4000


def by_key_group(blocks: list[Block], groups_of: Callable[[Block], npt.NDArray[np.uint16]]) -> list[Block]:
    """Return the records of many blocks as one block for each origin, ordered by key group; a few stay unchanged.

    Records of one key group keep their order. `groups_of` returns the key group of each record of a block.
    """
    if len(blocks) < 2 or sum(block.batch.num_rows for block in blocks) < _MANY_RECORDS:
        return blocks
    joined = join_blocks(sorted(blocks, key=operator.attrgetter("order")))
    return [
        # NumPy sorts 16-bit integers by radix.
        dataclasses.replace(
            block, batch=block.batch.take(pa.array(np.argsort(groups_of(block), kind="stable")))
        )
        for block in joined
    ]
