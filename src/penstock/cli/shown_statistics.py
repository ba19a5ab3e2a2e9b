"""Shown statistics: how the numbers of two snapshots compare, as tables with bars, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from rich.table import Table

from penstock.cli.output import escape as escape_markup
from penstock.cli.output import stdout

if TYPE_CHECKING:
    from penstock.snapshots.column_statistics import ColumnComparison, TableStatistics

__all__ = ["draw_statistics", "print_statistics"]

_STATISTICS: Final = ("values", "missing", "least", "q50", "greatest", "mean", "deviation")
_HEIGHTS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS, _WIDTH, _HEIGHT, _GAP, _TOP = 3, 250, 96, 24, 64
_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-size: 15px; font-weight: 600 }
.back { fill: #fff } .axis { stroke: #999 } .before { fill: #999; opacity: 0.6 } .after { fill: #0b6fb8; opacity: 0.6 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .back { fill: #16181c } .after { fill: #5db4f0 } }
"""


def print_statistics(found: TableStatistics) -> None:
    """Print the statistics of a table: for each column both snapshots below each other, and how they compare."""
    sides = [("first", {c.name: c for c in found.before}), ("second", {c.name: c for c in found.after})]
    names = list(dict.fromkeys(name for _, columns in sides for name in columns))
    if not names:
        return
    compared = {one.name: one for one in found.compared}
    title = escape_markup(found.name)
    table = Table("column", "snapshot", *_STATISTICS, "distribution", title=title, title_justify="left")
    for name in names:
        one = compared.get(name)
        for side, columns in sides:
            if name in columns:
                values = (getattr(columns[name], statistic) for statistic in _STATISTICS)
                counts: Sequence[int] = () if one is None else one.before if side == "first" else one.after
                shown = ["" if value is None else f"{value:,.6g}" for value in values]
                table.add_row(escape_markup(name), side, *shown, _bars(counts))
    stdout.print(table)
    if compared:
        moved = Table("column", "Kolmogorov-Smirnov", "stability index", title=f"{title}: how far they moved")
        moved.title_justify = "left"
        for one in _by_distance(compared.values()):
            moved.add_row(
                escape_markup(one.name), f"{one.kolmogorov_smirnov:.3f}", f"{one.stability_index:.3f}"
            )
        stdout.print(moved)


def draw_statistics(tables: Iterable[TableStatistics], place: Path) -> None:
    """Write a picture (SVG) of the distributions in both snapshots, those that moved most first."""
    columns = [(table.name, one) for table in tables for one in _by_distance(table.compared)]
    rows = -(-len(columns) // _COLUMNS)
    width, height = _COLUMNS * (_WIDTH + _GAP) + _GAP, _TOP + rows * (_HEIGHT + 2 * _GAP + 14)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f'<style>{_STYLE}</style><rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_GAP}" y="28">Numbers in both snapshots</text>',
        f'<rect class="before" x="{_GAP}" y="38" width="12" height="12"/><text x="{_GAP + 18}" y="48">first</text>',
        f'<rect class="after" x="{_GAP + 70}" y="38" width="12" height="12"/>',
        f'<text x="{_GAP + 88}" y="48">second</text>',
    ]
    for number, (table, one) in enumerate(columns):
        left = _GAP + number % _COLUMNS * (_WIDTH + _GAP)
        top = _TOP + number // _COLUMNS * (_HEIGHT + 2 * _GAP + 14) + 14
        parts += _panel(table, one, left, top)
    place.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _panel(table: str, one: ColumnComparison, left: int, top: int) -> list[str]:
    """Return the bars of a column, as shares, and its name, measures and range."""
    name = one.name.removeprefix("value.")
    parts = [
        f"<title>{escape(table)}: {escape(name)}</title>",
        f'<text x="{left}" y="{top + 4}">{escape(name[:36])}</text>',
    ]
    shares = {"before": _shares(one.before), "after": _shares(one.after)}
    most = max(max(side) for side in shares.values())
    base = top + 12 + _HEIGHT
    for side, heights in shares.items():
        step = _WIDTH / len(heights)
        bars = (
            f"M{left + at * step:.1f} {base}v{-_HEIGHT * share / most:.1f}h{step:.1f}V{base}z"
            for at, share in enumerate(heights)
            if share
        )
        parts.append(f'<path class="{side}" d="{"".join(bars)}"/>')
    measures = f"KS {one.kolmogorov_smirnov:.2f}, PSI {one.stability_index:.2f}"
    return [
        "<g>",
        *parts,
        f'<line class="axis" x1="{left}" x2="{left + _WIDTH}" y1="{base}" y2="{base}"/>',
        f'<text x="{left}" y="{base + 15}">{one.lower:.4g} to {one.upper:.4g}</text>',
        f'<text x="{left + _WIDTH}" y="{base + 15}" text-anchor="end">{measures}</text></g>',
    ]


def _by_distance(compared: Iterable[Any]) -> list[Any]:
    return sorted(compared, key=lambda one: -one.kolmogorov_smirnov)


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / sum(counts) for count in counts]


def _bars(given: Sequence[int]) -> str:
    """Return counts as bars, one for two of them, so that they fit into a table."""
    counts = [sum(given[at : at + 2]) for at in range(0, len(given), 2)]
    most = max(counts, default=0)
    return "".join(_HEIGHTS[-(-count * (len(_HEIGHTS) - 1) // most)] for count in counts) if most else ""
