"""Warm rooms: the job that a new `penstock serve` runs, for users to watch and control.

Its only input is the clock. Each tick is a moment in one room, which loses heat to the outside and gains heat while its
heater is on. A command sets the desired temperature of a room:
`penstock control send demo --kind set --target thermostat/5 --json '{"desired": 23.5}'`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import penstock as ps

ROOMS = 20
SECONDS = 0.1  # between two moments of a room, at 200 ticks a second
LEAK = 0.03  # of the difference to the outside, a second
HEATER = 1.3  # degrees a second; simulated time is fast, so that users see rooms heat up
DAY = 600.0  # seconds


@dataclass
class Tick:
    """A tick of the clock, with its number."""

    number: int


@dataclass
class Moment:
    """A moment in a room, with the temperature outside in degrees Celsius."""

    room: int
    outside: float


class Command(Enum):
    """A command to a heater."""

    ON = "ON"
    OFF = "OFF"


@dataclass
class HeaterCommand:
    """A command to the heater of a room, with the room's temperature in degrees Celsius."""

    room: int
    command: Command
    temperature: float


def moment(tick: Tick) -> Moment:
    """Convert a tick to a moment: ticks rotate over the rooms, and the weather goes through a short day."""
    seconds = tick.number // ROOMS * SECONDS
    return Moment(tick.number % ROOMS + 1, 6.0 + 4.0 * math.sin(2 * math.pi * seconds / DAY))


class Thermostat(ps.ProcessFunction):
    """A thermostat that switches the heater of a room that leaves the band around the desired temperature."""

    desired = ps.ValueState(float)
    temperature = ps.ValueState(float)
    is_heating = ps.ValueState(bool)
    band = ps.Setting(float, 0.5)

    def process_record(self, moment: Moment, ctx: ps.Context) -> Iterator[HeaterCommand]:
        """Advance a room by a moment, and switch its heater if its new temperature requires it."""
        now = self.temperature.get()
        if now is None:
            now = 17.0 + moment.room % 6
        heating = bool(self.is_heating.get())
        now += SECONDS * (LEAK * (moment.outside - now) + HEATER * heating)
        self.temperature.set(now)
        desired = self.desired.get()
        if desired is None:
            desired = 21.0
        if now > desired + self.band.get() and heating:
            self.is_heating.set(False)
            yield HeaterCommand(moment.room, Command.OFF, round(now, 2))
        elif now < desired - self.band.get() and not heating:
            self.is_heating.set(True)
            yield HeaterCommand(moment.room, Command.ON, round(now, 2))


job = ps.Job("warm-rooms", key_groups=16)
ticks = job.data_stream("ticks", schema=Tick)
rooms = ticks.map(moment, name="weather")
rooms.key_by("room").process("thermostat", Thermostat()).sink_to("heaters")
