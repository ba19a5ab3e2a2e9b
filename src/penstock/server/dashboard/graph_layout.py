"""Graph layout: the parts of a job in columns along the flow of records, and the lines between them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["NODE_HEIGHT", "NODE_WIDTH", "Layout", "Place", "Wire", "lay_out"]

NODE_WIDTH: Final = 198
NODE_HEIGHT: Final = 104
_GAP_X: Final = 60
_GAP_Y: Final = 22
_MARGIN: Final = 16
_SWEEPS: Final = 4


@dataclass(frozen=True)
class Place:
    """The position of the upper left corner of a part, in pixels."""

    x: int
    y: int


@dataclass(frozen=True)
class Wire:
    """A line from one part to another, as an SVG path."""

    source: str
    target: str
    path: str


@dataclass(frozen=True)
class Layout:
    """A drawing of a graph, and its size in pixels."""

    places: dict[str, Place]
    wires: list[Wire]
    width: int
    height: int


def lay_out(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> Layout:
    """Lay out a graph so that each part is to the right of the parts that it reads.

    `nodes` are in topological order: each comes after the parts that it reads. `edges` are pairs of source and target.
    Within a column, parts are ordered by the mean position of their neighbours (Sugiyama's barycentres).
    """
    columns = _group_columns(nodes, edges)
    _untangle(columns, edges)
    rows = max((len(column) for column in columns), default=0)
    height = 2 * _MARGIN + rows * NODE_HEIGHT + max(0, rows - 1) * _GAP_Y
    places = {}
    for number, column in enumerate(columns):
        own = len(column) * NODE_HEIGHT + (len(column) - 1) * _GAP_Y
        for row, node in enumerate(column):
            places[node] = Place(
                _MARGIN + number * (NODE_WIDTH + _GAP_X),
                (height - own) // 2 + row * (NODE_HEIGHT + _GAP_Y),
            )
    width = 2 * _MARGIN + len(columns) * NODE_WIDTH + max(0, len(columns) - 1) * _GAP_X
    wires = [Wire(source, target, _path(places[source], places[target])) for source, target in edges]
    return Layout(places, wires, width, height)


def _group_columns(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Group the parts by the longest path from a source to them; sources move next to their first reader."""
    readers: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    for source, target in edges:
        readers.setdefault(source, []).append(target)
        sources.setdefault(target, []).append(source)
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node] = max((depth[source] + 1 for source in sources.get(node, [])), default=0)
    for node in reversed(nodes):
        if node not in sources and node in readers:
            depth[node] = min(depth[target] for target in readers[node]) - 1
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node]].append(node)
    return columns


def _untangle(columns: list[list[str]], edges: Sequence[tuple[str, str]]) -> None:
    """Order each column by its neighbours, alternately forwards and backwards."""
    backwards = [(target, source) for source, target in edges]
    for sweep in range(_SWEEPS):
        ahead = sweep % 2 == 0
        rank = {node: row for column in columns for row, node in enumerate(column)}
        near: dict[str, list[str]] = {}
        for source, target in edges if ahead else backwards:
            near.setdefault(target, []).append(source)
        for column in columns if ahead else reversed(columns):
            column.sort(key=lambda node: _mean([rank[other] for other in near.get(node, [])], rank[node]))
            rank.update({node: row for row, node in enumerate(column)})


def _mean(values: Sequence[int], otherwise: int) -> float:
    return sum(values) / len(values) if values else float(otherwise)


def _path(source: Place, target: Place) -> str:
    begin_x, begin_y = source.x + NODE_WIDTH, source.y + NODE_HEIGHT // 2
    end_x, end_y = target.x, target.y + NODE_HEIGHT // 2
    bend = max(24, (end_x - begin_x) // 2)
    return f"M{begin_x},{begin_y} C{begin_x + bend},{begin_y} {end_x - bend},{end_y} {end_x - 7},{end_y}"
