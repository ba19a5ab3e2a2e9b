"""The reference: the sessions and the late clicks of a run, in plain Python, without penstock or Spark."""

import datetime as dt
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]

GAP = dt.timedelta(minutes=15)
BEHIND = dt.timedelta(minutes=1)
MILLISECOND = dt.timedelta(milliseconds=1)


def at(click: Record) -> dt.datetime:
    """Return the time of a click."""
    return dt.datetime.fromisoformat(click["at"])


class Model:
    """A model that takes micro-batches of clicks; the watermark moves after each."""

    def __init__(self) -> None:
        self.sessions: list[Record] = []
        self.late: list[Record] = []
        self._open: dict[str, list[list[Record]]] = {}
        self._newest = dt.datetime.min.replace(tzinfo=dt.UTC) + 2 * BEHIND

    def take(self, clicks: Iterable[Record]) -> None:
        """Take a micro-batch: its clicks, then the sessions that end by the new watermark."""
        over = self._newest - BEHIND - MILLISECOND
        found = list(clicks)
        for click in found:
            self._put(click, over)
        self._newest = max([self._newest, *map(at, found)])
        self._close(self._newest - BEHIND - MILLISECOND)

    def end(self) -> None:
        """End the input."""
        self._close(dt.datetime.max.replace(tzinfo=dt.UTC))

    def _put(self, click: Record, over: dt.datetime) -> None:
        """Join a click with the open sessions close to it, unless the result would already be over."""
        known = self._open.setdefault(click["user"], [])
        near = [one for one in known if at(one[0]) - GAP <= at(click) <= at(one[-1]) + GAP]
        joined = sorted([click, *(other for one in near for other in one)], key=at)
        if at(joined[-1]) + GAP - MILLISECOND <= over:
            self.late.append(click)
            return
        self._open[click["user"]] = [*(one for one in known if one not in near), joined]

    def _close(self, over: dt.datetime) -> None:
        for user, known in self._open.items():
            self._open[user] = []
            for clicks in known:
                if at(clicks[-1]) + GAP - MILLISECOND > over:
                    self._open[user].append(clicks)
                    continue
                pages = sorted({click["page"] for click in clicks})
                self.sessions.append(
                    {
                        "user": user,
                        "start": at(clicks[0]),
                        "end": at(clicks[-1]),
                        "clicks": len(clicks),
                        "pages": pages,
                    }
                )
