"""Charts: series over time, in panels below each other, as a self-contained picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["Panel", "draw_chart"]

_WIDTH: Final = 760
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 44
_PANEL: Final = 110
_GAP: Final = 34
_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #ccc; stroke-width: 1 }
.mark { stroke: #999; stroke-width: 1; stroke-dasharray: 3 3 }
.line { fill: none; stroke: #0b6fb8; stroke-width: 2; stroke-linejoin: round }
.back { fill: #fff }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .grid { stroke: #444 } .mark { stroke: #777 } .line { stroke: #5db4f0 } .back { fill: #16181c }
}
"""


@dataclass(frozen=True)
class Panel:
    """One series: seconds and values. With `steps` a value holds until the next."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def draw_chart(title: str, panels: Sequence[Panel], marks: Sequence[tuple[float, str]], end_s: float) -> str:
    """Draw panels over the same time, as SVG; `marks` are moments with a label each."""
    height = _TOP + len(panels) * (_PANEL + _GAP) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_PANEL + _GAP), marks, end_s, is_first=number == 0)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    panel: Panel, top: float, marks: Sequence[tuple[float, str]], end_s: float, *, is_first: bool
) -> list[str]:
    bottom = top + _PANEL
    most = _nice(max((value for _, value in panel.points), default=1.0))

    def x(seconds: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * min(seconds, end_s) / end_s, 1)

    def y(value: float) -> float:
        return round(bottom - (_PANEL - 14) * value / most, 1)

    parts = [f'<text x="{_LEFT}" y="{top + 4}">{escape(panel.name)}</text>']
    for value in (0.0, most / 2, most):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    for seconds, word in marks:
        parts.append(f'<line class="mark" x1="{x(seconds)}" x2="{x(seconds)}" y1="{top + 8}" y2="{bottom}"/>')
        if is_first:
            parts.append(f'<text x="{x(seconds) + 3}" y="{top + 4}">{escape(word)}</text>')
    points = list(panel.points)
    if points:
        path = f"M{x(points[0][0])} {y(points[0][1])}"
        for seconds, value in points[1:]:
            path += f"H{x(seconds)}V{y(value)}" if panel.steps else f"L{x(seconds)} {y(value)}"
        if panel.steps:
            path += f"H{x(end_s)}"
        parts.append(f'<path class="line" d="{path}"/>')
    minutes = range(int(end_s // 60) + 1)
    parts += [
        f'<text x="{x(60 * minute)}" y="{bottom + 15}" text-anchor="middle">{minute} min</text>'
        for minute in minutes
    ]
    return parts


def _nice(most: float) -> float:
    """Return a round number that is at least `most`."""
    if most <= 0:
        return 1.0
    size = 10 ** math.floor(math.log10(most))
    return next(float(step * size) for step in (1, 2, 4, 5, 8, 10) if step * size >= most)
