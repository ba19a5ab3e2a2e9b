"""Where the dashboard draws the parts of a job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.server.dashboard.graph_layout import NODE_HEIGHT, NODE_WIDTH, lay_out


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, str]]]:
    nodes = [f"n{number}" for number in range(draw(st.integers(0, 9)))]
    edges = [
        (nodes[source], nodes[target])
        for target in range(len(nodes))
        for source in draw(st.sets(st.integers(0, max(0, target - 1)), max_size=3))
        if source < target
    ]
    return nodes, edges


@examples(60)
@given(graphs())
def test_each_part_stands_right_of_what_it_reads(graph: tuple[list[str], list[tuple[str, str]]]) -> None:
    """None lies on another, all are within the drawing, and it is the same each time."""
    nodes, edges = graph
    layout = lay_out(nodes, edges)
    assert set(layout.places) == set(nodes)
    assert [(wire.source, wire.target) for wire in layout.wires] == edges
    for source, target in edges:
        assert layout.places[source].x + NODE_WIDTH < layout.places[target].x
    places = list(layout.places.values())
    for number, one in enumerate(places):
        assert 0 <= one.x <= layout.width - NODE_WIDTH
        assert 0 <= one.y <= layout.height - NODE_HEIGHT
        for other in places[:number]:
            assert abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT
    assert lay_out(nodes, edges) == layout


def test_lines_do_not_cross_without_need() -> None:
    """Two chains that are told crosswise are drawn side by side; a late source stands near what reads it."""
    nodes = ["a", "b", "c", "b2", "a2", "b3", "a3"]
    edges = [("a", "a2"), ("b", "b2"), ("a2", "a3"), ("b2", "b3"), ("c", "a3")]
    places = lay_out(nodes, edges).places
    for first, second in (("a", "b"), ("a2", "b2"), ("a3", "b3")):
        assert (places[first].y < places[second].y) == (places["a"].y < places["b"].y)
    assert places["c"].x == places["a2"].x
