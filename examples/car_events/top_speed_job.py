"""Tell the top speed of each car over its last ten seconds, every fifty metres."""

from dataclasses import dataclass

import penstock as ps

METRES = 50.0


@dataclass
class CarEvent:
    """Where a car is: speed in km/h, distance in metres since it set off, time in milliseconds since 1970."""

    car: int
    speed: int
    distance: float
    time: int


def metres(earlier: CarEvent, later: CarEvent) -> float:
    return later.distance - earlier.distance


def faster(one: CarEvent, other: CarEvent) -> CarEvent:
    """The faster of two; of equal ones the first."""
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
