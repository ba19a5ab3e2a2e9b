"""Transforms: which functions they take, what these say of their results, and how they are named."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from described_streams import PENSTOCKS_FIELD, Measured, Streams, gives_int, gives_none, refused, yields


def gives_one(record: Any) -> Measured:
    return Measured(1, 1.0)


def gives_list(record: Any) -> list[Measured]:
    return [record]


def gives_perhaps(record: Any) -> list[Measured] | None:
    return None


async def is_async(record: Any) -> Measured:
    return Measured(1, 1.0)


def test_annotations_say_what_a_transform_emits(streams: Streams) -> None:
    """Of one record for map, of several or perhaps several for flat_map; `output` says it for functions without."""
    data = streams.data
    assert data.map(gives_one).record_type.name == "Measured"
    for function in (yields, gives_list, gives_perhaps):
        assert data.flat_map(function).record_type.name == "Measured"
    assert data.flat_map(lambda record: [record], output=Measured).record_type.name == "Measured"
    assert data.map(Measured, output=Measured).record_type.name == "Measured"


def test_transforms_get_names_in_order(streams: Streams) -> None:
    """Names left out are made of the kind and the number of the transform."""
    filtered = itertools.accumulate(range(3), lambda stream, _: stream.filter(bool), initial=streams.data)
    *_, last = filtered
    assert list(last.graph.nodes)[2:] == [f"transform/filter-{n}" for n in (1, 2, 3)]


def test_a_transform_takes_a_function(streams: Streams) -> None:
    """Not its name."""
    with refused("map needs a function, not 'double'"):
        streams.data.map("double")  # type: ignore[arg-type]


def test_a_map_says_what_it_emits(streams: Streams) -> None:
    """By an annotation or `output`; the message shows how."""
    with refused("The map 'map-1' does not say what it emits", "output=MyRecord"):
        streams.data.map(lambda record: record)


def test_a_map_emits_something(streams: Streams) -> None:
    """None may be an annotation that was forgotten."""
    with refused("The map 'map-1'", "return None", "Annotate"):
        streams.data.map(gives_none)


def test_a_map_emits_records(streams: Streams) -> None:
    """And no numbers; the transform is named."""
    with refused("The map 'n'", "int is not a schema", "dataclass"):
        streams.data.map(gives_int, name="n")


def test_a_map_emits_records_of_known_types(streams: Streams) -> None:
    """As a stream has."""
    with refused("'map-1'", "'text'"):
        streams.data.map(str.upper, output="a TEXT")


def test_a_transform_emits_no_field_of_penstocks_own(streams: Streams) -> None:
    """As a stream has none."""
    with refused("The flat_map 'flat_map-1'", "'__offset'"):
        streams.data.flat_map(yields, output=PENSTOCKS_FIELD)


@pytest.mark.parametrize("method", ["map", "filter"])
def test_a_function_that_yields_is_for_flat_map(streams: Streams, method: str) -> None:
    """And not for map or filter."""
    with refused(f"{method} needs", "yields yields", "use flat_map"):
        getattr(streams.data, method)(yields)


def test_a_function_that_returns_several_is_for_flat_map(streams: Streams) -> None:
    """Whatever `output` says."""
    with refused("map needs", "gives_list is annotated to return several", "use flat_map"):
        streams.data.map(gives_list, output=Measured)


def test_a_function_that_returns_one_is_for_map(streams: Streams) -> None:
    """And not for flat_map."""
    with refused("flat_map needs", "gives_one is annotated to return one", "use map"):
        streams.data.flat_map(gives_one)


def test_an_async_function_is_for_no_transform(streams: Streams) -> None:
    """The message names the function."""
    with refused("map needs a plain function", "is_async is async"):
        streams.data.map(is_async)


def test_a_partial_of_an_async_function_is_for_no_transform(streams: Streams) -> None:
    """Though it is no async function itself."""
    with refused("filter needs a plain function", "is async"):
        streams.data.filter(partial(is_async))
