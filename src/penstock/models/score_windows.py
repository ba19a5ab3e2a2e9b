"""Score windows: the recent scores of the versions of a model, since their status last changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.models.model_policy import VersionFigures, figures_of
from penstock.models.tallies import VersionTally, add_tallies
from penstock.models.versions import LIVE, SERVING

__all__ = ["ScoreWindow", "add_scores", "window_figures"]

_PANES: Final = 10


class _Pane(msgspec.Struct):
    """The scores in a part of the window, `number` parts after 1970, by version."""

    number: int
    scores: dict[str, VersionTally] = {}


class ScoreWindow(msgspec.Struct):
    """The scores of the versions of one model within a window, in parts of `pane_ms`, oldest first.

    `since` has the status of each version and the command that gave it: earlier scores do not count. `time` is the
    clock of the window.
    """

    time: str = "processing"
    pane_ms: int = 0
    panes: list[_Pane] = []
    since: dict[str, tuple[str, str]] = {}


def add_scores(
    window: ScoreWindow,
    versions: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, VersionTally],
    now_ms: int | None,
    clock: tuple[str, int],
) -> None:
    """Add the scores of versions up to now, and drop those older than the window.

    `clock` is the kind of time and the length of the window in milliseconds. If the time is not known, nothing is added
    or dropped, except for versions whose status has changed.

    `versions` are the present ones, as they are shown. If the status of one has changed meanwhile, nobody knows which
    of its scores are from before, so none of them counts.
    """
    time, window_ms = clock
    pane_ms = -(-window_ms // _PANES)
    if (time, pane_ms) != (window.time, window.pane_ms):
        window.time, window.pane_ms, window.panes = time, pane_ms, []
    since = {name: (found["status"], found.get("command", "")) for name, found in versions.items()}
    changed = {name for name in {*since, *window.since} if since.get(name) != window.since.get(name)}
    for pane in window.panes:
        pane.scores = {name: tally for name, tally in pane.scores.items() if name not in changed}
    window.since = since
    if now_ms is None:
        return
    number = now_ms // pane_ms
    window.panes = [pane for pane in window.panes if pane.number > number - _PANES and pane.scores]
    added = {name: tally for name, tally in scores.items() if name not in changed}
    if not added:
        return
    if not window.panes or window.panes[-1].number < number:
        window.panes.append(_Pane(number))
    add_tallies(window.panes[-1].scores, added)


def window_figures(
    window: ScoreWindow, versions: Mapping[str, Mapping[str, Any]], totals: Mapping[str, VersionTally]
) -> dict[str, VersionFigures]:
    """Return the figures of the versions that score, within the window.

    The drift is against the scores of the serving version; for the serving version, against all scores of the one that
    served before it.
    """
    found: dict[str, VersionTally] = {}
    for pane in window.panes:
        add_tallies(found, pane.scores)
    serving = next((name for name, one in versions.items() if one["status"] == SERVING), None)
    before = None if serving is None else versions[serving].get("before")
    figures = {}
    for name, one in versions.items():
        if one["status"] in LIVE and name in found:
            reference = totals.get(before or "") if name == serving else found.get(serving or "")
            figures[name] = figures_of(found[name], reference)
    return figures
