"""Find the sessions of users in their clicks: start, end, number of clicks and pages."""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import penstock as ps

GAP = dt.timedelta(minutes=15)


@dataclass
class Click:
    """A click of a user on a page, and when."""

    user: str
    page: str
    at: dt.datetime


@dataclass
class Session:
    """The clicks of a user without a longer break. It ends with the last click."""

    user: str
    start: dt.datetime
    end: dt.datetime
    clicks: int
    pages: list[str]


class Summary(ps.WindowFunction):
    """Turns the clicks of a window into one session."""

    def process(self, key: str, records: Sequence[Click], ctx: ps.WindowContext) -> Iterator[Session]:
        clicks = sorted(records, key=lambda click: (click.at, click.page))
        pages = sorted({click.page for click in clicks})
        yield Session(key, clicks[0].at, clicks[-1].at, len(clicks), pages)


job = ps.Job("sessions")
clicks = job.data_stream("clicks", schema=Click, event_time="at", watermarks=ps.Watermarks.bounded("1m"))

sessions = clicks.key_by("user").window(ps.SessionWindows(GAP)).process("sessions", Summary())
sessions.sink_to("sessions")
sessions.side_output("late").sink_to("late")
