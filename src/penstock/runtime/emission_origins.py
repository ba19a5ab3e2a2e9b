"""Emission origins: names of the records that a step emits, which stay the same when it emits them again.

The name of a record is `GROUP/PLACE/OFFSET/NUMBER`: the key group, the place and the offset of the record that caused
it, and its number among those that this record has caused in the key group. So it depends neither on rounds nor on how
many slots there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.emission_causes import Causes
from penstock.engine.step import Emission

__all__ = ["origin_columns"]

_Ints = npt.NDArray[np.int64]


def origin_columns(
    emissions: Sequence[Emission], groups_of: Callable[[Emission], npt.NDArray[np.uint16]]
) -> list[pa.Array | None]:
    """Return the names of the records of emissions that follow each other; None where the causes are unknown.

    All records that one record has caused must be among the emissions.
    """
    found: list[pa.Array | None] = [None] * len(emissions)
    by_output: dict[str, list[int]] = {}
    for place, emission in enumerate(emissions):
        if emission.causes is not None:
            by_output.setdefault(emission.output, []).append(place)
    for places in by_output.values():
        some = [emissions[place] for place in places]
        names = _names(np.concatenate([groups_of(one) for one in some]), [one.causes for one in some])
        begin = 0
        for place, one in zip(places, some, strict=True):
            found[place] = names.slice(begin, len(one.keys))
            begin += len(one.keys)
    return found


def _names(groups: npt.NDArray[np.uint16], causes: Sequence[Causes | None]) -> pa.Array:
    known = [one for one in causes if one is not None]
    places = pa.concat_arrays([one.places for one in known])
    offsets = pa.concat_arrays([one.offsets for one in known])
    numbers = _number_rows(
        groups.astype(np.int64),
        np.asarray(places.dictionary_encode().indices, np.int64),
        np.asarray(offsets, np.int64),
    )
    return pc.binary_join_element_wise(
        pa.array(groups).cast(pa.string()),
        places,
        offsets.cast(pa.string()),
        pa.array(numbers).cast(pa.string()),
        "/",
    )


def _number_rows(groups: _Ints, places: _Ints, offsets: _Ints) -> _Ints:
    """Number the rows that are equal in all three, in their order."""
    count = len(groups)
    # It is stable, so rows that are equal stay in order.
    order = np.lexsort((offsets, places, groups))
    columns = [column[order] for column in (groups, places, offsets)]
    is_new = np.ones(count, bool)
    is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    starts = np.flatnonzero(is_new)
    numbers = np.empty(count, np.int64)
    numbers[order] = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    return numbers
