"""A job whose commands add up: what is applied twice, or not at all, shows in the sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    """A number of a sensor."""

    sensor: int
    number: int


@dataclass
class Sum:
    """What was added to a sensor so far, by which command last."""

    sensor: int
    command: str
    total: int


@dataclass
class Seen:
    """A reading, and what was added to its sensor by then."""

    sensor: int
    number: int
    total: int


class Sums(ps.ProcessFunction):
    """Adds what commands say to the sum of their key."""

    side_outputs = {"seen": Seen}
    total = ps.ValueState(int)

    @ps.on_command("add")
    def add(self, amount: int, ctx: ps.CommandContext) -> Iterator[Sum]:
        """Add an amount; negative ones are refused."""
        total = (self.total.get() or 0) + amount
        self.total.set(total)
        if amount < 0:
            raise ValueError(f"{amount} is negative")
        yield Sum(ctx.key, ctx.command.id, total)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Sum]:
        """Tell what the sum is."""
        ctx.side_output("seen", Seen(reading.sensor, reading.number, self.total.get() or 0))
        return iter(())


job = ps.Job("counting")
readings = job.data_stream("readings", schema=Reading)
sums = readings.key_by("sensor").process("sums", Sums())
sums.sink_to("sums")
sums.side_output("seen").sink_to("seen")
