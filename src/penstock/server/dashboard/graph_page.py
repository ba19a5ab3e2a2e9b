"""The page with the graph of a job: its streams, steps and sinks, their rates, and their backlog."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from nicegui import ui

from penstock.base.sizes import format_bytes, format_limits
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount
from penstock.server.dashboard.graph_layout import NODE_HEIGHT, NODE_WIDTH, Layout, lay_out
from penstock.server.dashboard.health import BEHIND_S
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.metrics_resources import Metrics, StepMetrics, StreamMetrics
from penstock.server.service.plan_resources import Plan, PlanNode

__all__ = ["about_node", "graph", "node_metrics"]

_ICONS: Final = {
    "data stream": "input",
    "control stream": "tune",
    "step": "memory",
    "sink": "output",
    "lookup table": "table_view",
    "union": "call_merge",
    "map": "functions",
    "filter": "filter_alt",
    "flat_map": "functions",
    "where": "filter_alt",
    "select": "view_column",
    "event time": "schedule",
}
_HIGH_SKEW: Final = 2.0
_NO_METRICS: Final = ("", "", False)


@job_tab("graph", "Graph", icon="account_tree", role=Role.VIEWER)
def graph(visit: JobVisit) -> None:
    """Build the page with the graph of a job."""
    _GraphPage(visit)


def node_metrics(node: PlanNode, found: Metrics) -> tuple[str, str, bool]:
    """Return the metrics of a part: records per second, its waiting or stored data, and whether that is too much."""
    if node.kind in ("data stream", "control stream"):
        stream = _find_named(found.streams, node.name)
        return _NO_METRICS if stream is None else _stream_metrics(stream)
    if node.kind == "step":
        step = _find_named(found.steps, node.name)
        return _NO_METRICS if step is None else _step_metrics(step)
    if node.kind == "sink":
        sink = _find_named(found.sinks, node.name)
        return (
            _NO_METRICS
            if sink is None
            else (f"{amount(sink.per_second)}/s", f"{amount(sink.records)} total", False)
        )
    return _NO_METRICS


def _stream_metrics(stream: StreamMetrics) -> tuple[str, str, bool]:
    lag = stream.lag
    rate = "" if stream.per_second is None else f"{amount(stream.per_second)}/s"
    if lag is None:
        return rate, "", False
    units = {"records": lag.records, "files": lag.files}
    waits = next((f"{amount(n)} {unit} wait" for unit, n in units.items() if n is not None), "")
    if not waits and lag.bytes is not None:
        waits = f"{format_bytes(lag.bytes)} wait"
    since = "" if not lag.seconds or lag.seconds < 1 else f", for {amount(round(lag.seconds))} s"
    return rate, waits + since, (lag.seconds or 0.0) > BEHIND_S


def _step_metrics(step: StepMetrics) -> tuple[str, str, bool]:
    rows = [f"{amount(step.keys)} keys", format_bytes(step.state_bytes)]
    uneven = step.skew is not None and step.skew >= _HIGH_SKEW
    if uneven:
        rows.append(f"skew {amount(step.skew)}")
    if step.held_bytes:
        rows.append(f"holds {format_bytes(step.held_bytes)}")
    return f"{amount(step.per_second)}/s", " · ".join(rows), bool(step.held_bytes)


def about_node(node: PlanNode) -> list[dict[str, str]]:
    """Return the details of a part as rows of the table."""
    rows: dict[str, str] = {"kind": node.kind}
    if node.binding is not None:
        rows["bound to"] = node.binding.uri
        if node.binding.limits:
            rows["limits per micro-batch"] = format_limits(node.binding.limits)
    if node.function:
        rows["function"] = node.function
    if node.key:
        rows["key"] = f"{', '.join(node.key)} ({node.key_type})"
    if node.windows is not None:
        rows["windows"] = f"{node.windows.assigner}, {node.windows.trigger}, {node.windows.contents}"
    if node.time:
        rows["event time"] = node.time
    if node.watermarks is not None:
        bound = node.watermarks.bound_ms
        rows["watermarks"] = node.watermarks.by + ("" if bound is None else f", {bound} ms behind")
    for state in node.states:
        rows[f"state {state.name}"] = f"{state.kind} of {state.type}" + (
            "" if state.keyed else ", one for the step"
        )
    for name, value in node.settings.items():
        rows[f"setting {name}"] = json.dumps(value)
    for kind, scopes in node.commands.items():
        rows[f"command {kind}"] = f"for {', '.join(scopes)}"
    for output, fields in node.records.items():
        name = f"output {output}" if output else "records"
        rows[name] = ", ".join(f"{field} {kind}" for field, kind in fields.items())
    return [{"name": name, "value": value} for name, value in rows.items()]


class _GraphPage:
    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        self._plan: Plan | None = None
        self._nodes: dict[str, _ShownNode] = {}
        self._tiles = components.Tiles(
            busy="Busy",
            batch="Mean micro-batch",
            phase="Longest phase (newest)",
            letters="Dead letters",
        )
        with components.card("Graph", about="Click a part for its details. Rates cover the last minute."):
            self._place = (
                ui.element("div").classes("p-graph").props('role=group aria-label="Graph of the job"')
            )
        with components.card("") as self._chosen:
            self._title = components.text("", "h2").classes("p-card-title p-body")
            self._about = components.Table(
                [components.Column("name", ""), components.Column("value", "", slot=components.WRAP_SLOT)],
                key="name",
                page_rows=0,
            )
        self._chosen.set_visibility(False)
        components.cli_equivalent(cli_equivalents.show_job(visit.job_id))
        reader = visit.service.reader
        visit.poll(lambda: reader.plan(visit.job_id), self._draw, key=("plan", visit.job_id), every_s=10.0)
        visit.poll(lambda: reader.metrics(visit.job_id, 1), self._show, key=("metrics", visit.job_id))

    def _draw(self, plan: Plan) -> None:
        if plan == self._plan:
            return
        self._plan = plan
        nodes = {node.id: node for node in plan.nodes}
        layout = lay_out(list(nodes), [(edge.source, edge.target) for edge in plan.edges])
        self._place.clear()
        self._place.style(f"width: {layout.width}px; height: {layout.height}px")
        with self._place:
            _draw_wires(layout, plan)
            self._nodes = {
                id_: _ShownNode(
                    node, layout.places[id_].x, layout.places[id_].y, lambda n=node: self._choose(n)
                )
                for id_, node in nodes.items()
            }

    def _choose(self, node: PlanNode) -> None:
        self._chosen.set_visibility(True)
        self._title.set_text(node.name)
        self._about.show(about_node(node))

    def _show(self, found: Metrics) -> None:
        phases: Mapping[str, float] = found.batches[-1].phases if found.batches else {}
        working = [name for name in phases if name != "waiting"]
        longest = max(working, key=lambda name: phases[name], default=None)
        self._tiles.show(
            busy=f"{found.utilisation:.0%}" if found.seconds else "-",
            batch=f"{found.mean_busy_s * 1000:,.0f} ms" if found.mean_busy_s else "-",
            phase="-" if longest is None else f"{longest} {phases[longest] * 1000:,.0f} ms",
            letters=amount(found.dead_letters),
        )
        for shown in self._nodes.values():
            shown.show(found)


class _ShownNode:
    def __init__(self, node: PlanNode, x: int, y: int, choose: Any) -> None:
        self._node = node
        with ui.element("button").classes("p-node").props("type=button") as self._card:
            self._card.style(f"left: {x}px; top: {y}px; width: {NODE_WIDTH}px; height: {NODE_HEIGHT}px")
            self._card.classes(f"p-node-{node.kind.replace(' ', '-').replace('_', '-')}").on("click", choose)
            with ui.element("span").classes("p-node-kind"):
                ui.icon(_ICONS.get(node.kind, "functions")).props("aria-hidden=true")
                components.text(node.kind, "span")
            components.text(node.name, "span").classes("p-node-name")
            self._rate = components.text("", "span").classes("p-node-rate")
            self._more = components.text("", "span").classes("p-node-more")

    def show(self, found: Metrics) -> None:
        """Show the current metrics of the part."""
        rate, more, too_much = node_metrics(self._node, found)
        components.set_text(self._rate, rate)
        components.set_text(self._more, more)
        if too_much != ("p-too-much" in self._more.classes):
            self._more.classes(toggle="p-too-much")


def _draw_wires(layout: Layout, plan: Plan) -> None:
    with ui.element("svg").classes("p-wires") as drawing:
        drawing.props(f"width={layout.width} height={layout.height} aria-hidden=true")
        for edge, wire in zip(plan.edges, layout.wires, strict=True):
            kind = "control" if edge.is_control else edge.kind
            ui.element("path").classes(f"p-wire p-wire-{kind}").props(f'd="{wire.path}"')


def _find_named(found: tuple[Any, ...], name: str) -> Any:
    return next((one for one in found if one.name == name), None)
