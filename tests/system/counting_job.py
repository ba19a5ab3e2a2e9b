"""A job whose commands add up, so that the sums show a command applied twice or not at all."""

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
    """The sum of a sensor so far, and the last command that added to it."""

    sensor: int
    command: str
    total: int


@dataclass
class Seen:
    """A reading, and its sensor's sum at that moment."""

    sensor: int
    number: int
    total: int


class Sums(ps.ProcessFunction):
    """Adds the amounts of commands to the sum of their key."""

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
        """Emit the current sum."""
        ctx.side_output("seen", Seen(reading.sensor, reading.number, self.total.get() or 0))
        return iter(())


job = ps.Job("counting")
readings = job.data_stream("readings", schema=Reading)
sums = readings.key_by("sensor").process("sums", Sums())
sums.sink_to("sums")
sums.side_output("seen").sink_to("seen")
