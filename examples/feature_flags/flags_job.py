"""Determine which variant of a feature each user sees, by flags that change while the job runs."""

import bisect
import datetime as dt
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import penstock as ps

MAX_VERSIONS = 100
BEGINNING = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass
class PageView:
    """A page that a user viewed, and when."""

    user: str
    page: str
    at: dt.datetime


@dataclass
class Flag:
    """The users who have a feature, from `effective_at` on, or from the beginning without that time.

    A flag that is not enabled is off for everybody. Users in `allow` always have the feature, and `percent` of the
    others. `version` numbers the changes of all flags together.
    """

    name: str
    version: int
    enabled: bool = True
    percent: float = 0.0
    allow: list[str] = field(default_factory=list)
    effective_at: dt.datetime | None = None


@dataclass
class Exposure:
    """The variant of a feature that a user saw on a page, and why."""

    user: str
    flag: str
    variant: str
    why: str
    at: dt.datetime


def bucket(user: str, flag: str) -> float:
    """Return a user's bucket from 0 to 100: different for each flag, but the same on every machine, forever."""
    digest = hashlib.blake2b(f"{flag}/{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * 100 / 2**64


def start(flag: Flag) -> dt.datetime:
    """Return the time from which a version of a flag holds."""
    return flag.effective_at or BEGINNING


class Assign(ps.ConnectedProcessFunction):
    """Assigns a variant of every flag to every page view, by the flags in force at the time of the view."""

    schedules = ps.BroadcastState(str, list[Flag])
    killed = ps.Setting(list[str], [])

    def process_control(self, flag: Flag, ctx: ps.Context) -> None:
        others = [known for known in self.schedules.get(flag.name) or [] if start(known) != start(flag)]
        self.schedules.put(flag.name, sorted([*others, flag], key=start)[-MAX_VERSIONS:])

    def process_record(self, view: PageView, ctx: ps.Context) -> Iterator[Exposure]:
        killed = self.killed.get()
        for name, schedule in self.schedules.items():
            place = bisect.bisect_right(schedule, view.at, key=start)
            if place:
                flag = schedule[place - 1]
                variant, why = ("off", "killed") if name in killed else assigned(view.user, flag)
                yield Exposure(view.user, name, variant, why, view.at)


def assigned(user: str, flag: Flag) -> tuple[str, str]:
    """Return a user's variant under a version of a flag, and the reason."""
    if not flag.enabled:
        return "off", "disabled"
    if user in flag.allow:
        return "on", "allowed"
    return ("on" if bucket(user, flag.name) < flag.percent else "off"), f"{flag.percent:g} %"


job = ps.Job("feature-flags")
views = job.data_stream("views", schema=PageView, event_time="at")
flags = job.control_stream("flags", schema=Flag, effective_at="effective_at", version="version")

assigning = views.key_by("user").connect(flags.broadcast()).process("assign", Assign())
assigning.stamp_control_version().sink_to("exposures")
