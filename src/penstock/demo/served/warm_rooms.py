"""Rooms that are kept warm: the job that a new `penstock serve` runs, to be looked at and steered.

Its only input is the clock. Each tick is a moment in one room, which loses heat to the outside and gains it while its
heater is on. A command says how warm a room is to be:
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
HEATER = 1.3  # degrees a second; rooms live fast, so that one sees them heat up
DAY = 600.0  # seconds


@dataclass
class Tick:
    """A number that the clock gives."""

    number: int


@dataclass
class Moment:
    """A moment in a room, with the temperature outside in degrees Celsius."""

    room: int
    outside: float


class Command(Enum):
    """What a heater is told."""

    ON = "ON"
    OFF = "OFF"


@dataclass
class HeaterCommand:
    """A command to the heater of a room that has a temperature, in degrees Celsius."""

    room: int
    command: Command
    temperature: float


def moment(tick: Tick) -> Moment:
    """Ticks go round the rooms; the weather goes through a short day."""
    seconds = tick.number // ROOMS * SECONDS
    return Moment(tick.number % ROOMS + 1, 6.0 + 4.0 * math.sin(2 * math.pi * seconds / DAY))


class Thermostat(ps.ProcessFunction):
    """Switches the heater of a room that leaves the band around what is desired."""

    desired = ps.ValueState(float)
    temperature = ps.ValueState(float)
    is_heating = ps.ValueState(bool)
    band = ps.Setting(float, 0.5)

    def process_record(self, moment: Moment, ctx: ps.Context) -> Iterator[HeaterCommand]:
        """Let a moment pass, and judge the room by what it has become."""
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
