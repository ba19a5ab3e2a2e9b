"""The reference: the top speeds that the job must emit, in plain Python, without penstock or Spark."""

from collections.abc import Iterable, Iterator
from typing import Any

Record = dict[str, Any]

METRES = 50.0
LAST_MS = 10_000


def top_speeds(reports: Iterable[Record]) -> Iterator[Record]:
    """Yield the fastest report of the last ten seconds whenever a car has gone more than fifty metres.

    >>> first = {"car": 1, "speed": 90, "distance": 0.0, "time": 0}
    >>> list(top_speeds([first, {**first, "speed": 80, "distance": 51.0, "time": 2_000}]))
    [{'car': 1, 'speed': 90, 'distance': 0.0, 'time': 0}]
    """
    told_at: dict[int, float] = {}
    kept: dict[int, list[Record]] = {}
    for report in reports:
        car = report["car"]
        kept.setdefault(car, []).append(report)
        if report["distance"] - told_at.setdefault(car, report["distance"]) <= METRES:
            continue
        told_at[car] = report["distance"]
        newest = max(one["time"] for one in kept[car])
        kept[car] = [one for one in kept[car] if one["time"] > newest - LAST_MS]
        yield max(kept[car], key=lambda one: int(one["speed"]))
