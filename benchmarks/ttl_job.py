"""The job of the benchmark of expiring state: reports visitors who have not come for a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import penstock as ps

__all__ = ["TTL", "job"]

TTL = timedelta(seconds=30)


@dataclass
class Visit:
    """A visit, at milliseconds since 1970."""

    visitor: int
    at: int


@dataclass
class New:
    """A visitor who has not come within the time to live, or never before."""

    visitor: int
    at: int


class Newcomers(ps.ProcessFunction):
    """Keeps the last visit of each visitor for a limited time."""

    last = ps.ValueState(int, ttl=ps.Ttl(TTL, time="event"))

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[New]:  # noqa: ARG002  # as declared
        """Report a newcomer."""
        if self.last.get() is None:
            yield New(visit.visitor, visit.at)
        self.last.set(visit.at)


job = ps.Job("newcomers")
visits = job.data_stream("visits", schema=Visit, event_time="at")
visits.key_by("visitor").process("newcomers", Newcomers()).sink_to("new")
