"""Transforms: which functions they take, how results are declared, and their names."""

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
    """map has one record, flat_map several or an iterable; `output` declares it for functions without
    annotations.
    """
    data = streams.data
    assert data.map(gives_one).record_type.name == "Measured"
    for function in (yields, gives_list, gives_perhaps):
        assert data.flat_map(function).record_type.name == "Measured"
    assert data.flat_map(lambda record: [record], output=Measured).record_type.name == "Measured"
    assert data.map(Measured, output=Measured).record_type.name == "Measured"


def test_transforms_get_names_in_order(streams: Streams) -> None:
    """Default names have the kind and the number of the transform."""
    filtered = itertools.accumulate(range(3), lambda stream, _: stream.filter(bool), initial=streams.data)
    *_, last = filtered
    assert list(last.graph.nodes)[2:] == [f"transform/filter-{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("method", "function", "parts"),
    [
        ("map", "double", ("map needs a function, not 'double'",)),
        ("map", yields, ("map needs", "yields yields", "use flat_map")),
        ("filter", yields, ("filter needs", "yields yields", "use flat_map")),
        ("flat_map", gives_one, ("flat_map needs", "gives_one is annotated to return one", "use map")),
        ("map", is_async, ("map needs a plain function", "is_async is async")),
        ("filter", partial(is_async), ("filter needs a plain function", "is async")),
    ],
)
def test_a_transform_takes_a_function_of_its_kind(
    streams: Streams, method: str, function: Any, parts: tuple[str, ...]
) -> None:
    """It must be a plain function that returns as many records as the transform needs; the error names the
    right transform.
    """
    with refused(*parts):
        getattr(streams.data, method)(function)


def test_a_function_that_returns_several_is_for_flat_map(streams: Streams) -> None:
    """`output` does not change that."""
    with refused("map needs", "gives_list is annotated to return several", "use flat_map"):
        streams.data.map(gives_list, output=Measured)


@pytest.mark.parametrize(
    ("function", "output", "parts"),
    [
        (lambda record: record, None, ("The map 'map-1' does not say what it emits", "output=MyRecord")),
        (gives_none, None, ("The map 'map-1'", "return None", "Annotate")),
        (gives_int, None, ("The map 'map-1'", "int is not a schema", "dataclass")),
        (str.upper, "a TEXT", ("'map-1'", "'text'")),
        (gives_one, PENSTOCKS_FIELD, ("The map 'map-1'", "'__offset'")),
    ],
)
def test_a_transform_says_what_records_it_emits(
    streams: Streams, function: Any, output: Any, parts: tuple[str, ...]
) -> None:
    """An annotation or `output` has valid types, without field names reserved by penstock."""
    with refused(*parts):
        streams.data.map(function, output=output)


def test_a_transform_that_is_refused_is_named(streams: Streams) -> None:
    """The error has its given name, or its kind."""
    with refused("The map 'n'", "int is not a schema"):
        streams.data.map(gives_int, name="n")
    with refused("The flat_map 'flat_map-1'", "'__offset'"):
        streams.data.flat_map(yields, output=PENSTOCKS_FIELD)
