"""A job with a control stream, event time and two steps, for the tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import penstock as ps


@dataclass
class Visit:
    """A person who came through a gate, at a time in milliseconds since 1970."""

    gate: str
    at: int
    people: int


@dataclass
class Crowd:
    """A gate with more visits than its limit."""

    gate: str
    people: int


class Risk:
    """A model that multiplies the number of people."""

    def __init__(self, weights: dict[str, Any], metadata: dict[str, str]) -> None:
        self.factor = weights["factor"][0]

    def predict(self, columns: dict[str, Any]) -> Any:
        """Return the risk."""
        return columns["people"] * self.factor


class Watch(ps.ProcessFunction):
    """Emits when more people come through a gate than its limit, which a command sets."""

    limit = ps.ValueState(int)
    people = ps.ValueState(int)
    model = ps.Model("risk", inputs="people DOUBLE", output="risk DOUBLE", weights=Risk, default=0.0)

    @ps.on_command("limit")
    def set_limit(self, limit: int, ctx: ps.CommandContext) -> None:
        """Set the limit of a gate."""
        self.limit.set(limit)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Crowd]:
        """Count one visit."""
        people = (self.people.get() or 0) + visit.people
        self.people.set(people)
        limit = self.limit.get()
        risk = self.model.predict({"people": float(people)}, ctx).value
        if limit is not None and people > limit and risk >= 0:
            yield Crowd(visit.gate, people)


job = ps.Job("turnstiles")
visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("2s"))
by_gate = visits.key_by("gate")
by_gate.process("watch", Watch()).sink_to("crowds")
by_gate.window(ps.TumblingWindows("5s")).sum("people-per-gate", "people").sink_to("people")
