"""Emit the top speed of each car over its last ten seconds, every fifty metres."""

from dataclasses import dataclass

import penstock as ps

METRES = 50.0


@dataclass
class CarEvent:
    """A report of a car: speed in km/h, distance in metres since departure, time in milliseconds since 1970."""

    car: int
    speed: int
    distance: float
    time: int


def metres(earlier: CarEvent, later: CarEvent) -> float:
    return later.distance - earlier.distance


def faster(one: CarEvent, other: CarEvent) -> CarEvent:
    """Return the faster of two reports; the first one if they are equal."""
    return other if other.speed > one.speed else one


job = ps.Job("top-speed")
events = job.data_stream("cars", schema=CarEvent, event_time="time", watermarks=ps.Watermarks.monotonous())

windows = (
    events.key_by("car")
    .window(ps.GlobalWindows())
    .trigger(ps.DeltaTrigger(METRES, metres))
    .evictor(ps.TimeEvictor("10s"))
)
windows.reduce("top-speed", faster).sink_to("top-speeds")
