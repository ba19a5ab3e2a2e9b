"""Live charts: charts of the metrics of a job that grow while a page is open."""

from __future__ import annotations

import collections
import datetime as dt
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from nicegui import ui

from penstock.metrics.batch_metrics import BatchMetrics, BatchMetricsTail, read_batch_metrics
from penstock.server.dashboard import components
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.series import Chart, Unit, charts

__all__ = ["FORMATS", "WINDOWS", "MetricsTail", "show_charts"]

WINDOWS: Final = {120: "2 min", 600: "10 min", 3600: "1 h"}
"""The time windows of charts, in seconds, and their labels."""

_MAX_KEPT: Final = 7200
_COLOURS: Final = ["#3b82f6", "#10b981", "#f59e0b", "#a855f7", "#ef4444", "#06b6d4", "#84cc16", "#ec4899"]
_GREY: Final = "#8592a6"
_GRID: Final = "rgba(133, 146, 166, 0.18)"
FORMATS: Final[dict[Unit, str]] = {
    "records/s": "(value) => window.penstock.amount(value) + '/s'",
    "records": "(value) => window.penstock.amount(value) + ' records'",
    "files": "(value) => window.penstock.amount(value) + ' files'",
    "bytes": "(value) => window.penstock.size(value)",
    "s": "(value) => window.penstock.seconds(value)",
    "number": "(value) => String(Math.round(value * 1000) / 1000)",
    "%": "(value) => window.penstock.amount(value) + ' %'",
}
"""The functions that format numbers of each unit, by those of dashboard.js."""


class MetricsTail:
    """The metrics of a job over the last hour. Those of each micro-batch are read once."""

    def __init__(self, checkpoint: Path) -> None:
        since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=max(WINDOWS))
        self._new: Final = BatchMetricsTail(checkpoint)
        self._kept: Final = collections.deque(
            read_batch_metrics(checkpoint, _MAX_KEPT, since=since), _MAX_KEPT
        )

    def read(self) -> list[BatchMetrics]:
        """Return the metrics, oldest first."""
        newest = self._kept[-1].ended if self._kept else None
        self._kept.extend(found for found in self._new.read() if newest is None or found.ended > newest)
        return list(self._kept)


def show_charts(
    visit: JobVisit,
    window_s: Callable[[], float],
    names: Collection[str] | None = None,
    of: Callable[[list[BatchMetrics], dt.datetime, float], list[Chart]] = charts,
) -> None:
    """Show charts of a job over a window that ends now: those with the given names, or all.

    `of` makes them of the metrics, of the present time and of the length of the window in seconds.
    """
    shown: dict[str, _ShownChart] = {}
    with ui.element("div").classes("p-charts"):
        for chart in of([], dt.datetime.now(dt.UTC), window_s()):
            if names is None or chart.name in names:
                shown[chart.name] = _ShownChart(chart)

    def show(found: list[BatchMetrics]) -> None:
        now = dt.datetime.now(dt.UTC)
        for chart in of(found, now, window_s()):
            if chart.name in shown:
                shown[chart.name].show(chart, now, window_s())

    # The key differs from that of the page with the graph, which keeps other metrics.
    tail = ("metrics tail", visit.job_id)
    visit.poll(
        lambda: visit.readings.keep(tail, lambda: MetricsTail(visit.service.checkpoint(visit.job_id))).read(),
        show,
        key=("metrics read", visit.job_id),
    )


class _ShownChart:
    def __init__(self, chart: Chart) -> None:
        with components.card("") as card:
            with ui.element("div").classes("p-card-head"):
                self._title = components.text(chart.title, "h2").classes("p-card-title")
            card.props(f'aria-label="{chart.title}"').mark(f"chart-{chart.name}")
            self._nothing = ui.label("No data yet").classes("p-muted p-chart-nothing")
            self._chart = (
                ui.echart(_options(chart))
                .classes("p-chart")
                .props(f'data-chart="{chart.name}" data-points=0')
            )

    def show(self, chart: Chart, now: dt.datetime, window_s: float) -> None:
        """Show the values of a chart."""
        components.set_text(self._title, chart.title)
        end_ms = now.timestamp() * 1000
        self._nothing.set_visibility(not chart.lines)
        self._chart.options["series"] = [_line(line.name, line.points) for line in chart.lines]
        self._chart.options["legend"]["data"] = [line.name for line in chart.lines]
        axis = self._chart.options["xAxis"]
        axis["min"], axis["max"] = round(end_ms - window_s * 1000), round(end_ms)
        self._chart.options["yAxis"].update(_y_axis(chart.unit))
        self._chart.props(f"data-points={max((len(line.points) for line in chart.lines), default=0)}")
        self._chart.update()


def _options(chart: Chart) -> dict[str, Any]:
    # Names that begin with ":" are evaluated in the browser; their values are constants of this program.
    return {
        "animation": False,
        "useUTC": True,
        "color": _COLOURS,
        "grid": {"left": 12, "right": 18, "top": 34, "bottom": 8, "containLabel": True},
        "legend": {
            "type": "scroll",
            "top": 0,
            "left": 8,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 4,
            "textStyle": {"color": _GREY},
            "data": [],
        },
        "tooltip": {
            "trigger": "axis",
            "backgroundColor": "var(--p-surface)",
            "borderColor": "var(--p-line)",
            "textStyle": {"color": "var(--p-text)", "fontSize": 12},
            ":valueFormatter": FORMATS[chart.unit],
        },
        "xAxis": {
            "type": "time",
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "axisLabel": {"color": _GREY, "hideOverlap": True},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "splitLine": {"lineStyle": {"color": _GRID}},
            **_y_axis(chart.unit),
        },
        "series": [],
    }


def _y_axis(unit: Unit) -> dict[str, Any]:
    label = {"color": _GREY, ":formatter": FORMATS[unit]}
    return {"axisLabel": label, "max": 100} if unit == "%" else {"axisLabel": label}


def _line(name: str, points: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        "type": "line",
        "name": name,
        "showSymbol": len(points) == 1,
        "lineStyle": {"width": 2},
        "areaStyle": {"opacity": 0.08},
        "data": points,
    }
