"""The feature-flags example: exposures equal those of a model that searches the whole history of commands."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from encoded_commands import command_to
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

from penstock.jobs.job_loader import load_job
from penstock.streams.job_description import JobDescription
from penstock.testing.batch_runner import NOW, BatchRunner

EXAMPLE = Path(__file__).parents[3] / "examples" / "feature_flags"
JOB: JobDescription = load_job(str(EXAMPLE / "flags_job.py")).job
flags_job: Any = sys.modules["flags_job"]

Record = dict[str, Any]
USERS = ["ann", "ben", "cem", "dora", "eve"]
Held = list[tuple[dt.datetime | None, Any]]


def held_at(said: Held, time: dt.datetime | None) -> Any:
    """Return the newest value among those with the latest start by a time; None starts first of all."""
    begun = [
        (start is not None, start, number)
        for number, (start, _) in enumerate(said)
        if start is None or (time is not None and start <= time)
    ]
    return said[max(begun, key=lambda one: (one[0], one[1] or NOW, one[2]))[2]][1] if begun else None


class Model:
    """The model; it keeps all commands in order of arrival."""

    def __init__(self) -> None:
        self.flags: dict[str, Held] = {}
        self.killed: Held = []
        self.versions: Held = []

    def kill(self, names: list[str], since: dt.datetime | None) -> None:
        self.killed.append((since, names))
        self.versions.append((since, (held_at(self.versions, since) or 0) + 1))

    def take_flag(self, flag: Any) -> None:
        self.flags.setdefault(flag.name, []).append((flag.effective_at, flag))
        self.versions.append((flag.effective_at, flag.version))

    def exposures(self, view: Any) -> list[tuple[Any, ...]]:
        found = []
        for name, said in self.flags.items():
            flag = held_at(said, view.at)
            if flag is None:
                continue
            if name in (held_at(self.killed, view.at) or []):
                variant, why = "off", "killed"
            elif not flag.enabled:
                variant, why = "off", "disabled"
            elif view.user in flag.allow:
                variant, why = "on", "allowed"
            else:
                why = f"{flag.percent:g} %"
                variant = "on" if flags_job.bucket(view.user, name) < flag.percent else "off"
            version = held_at(self.versions, view.at) or 0
            found.append((view.user, name, variant, why, view.at, version))
        return found


hours = st.integers(0, 6).map(lambda hour: NOW + dt.timedelta(hours=hour))
flag_names = st.sampled_from(["checkout", "dark"])
any_flag = st.builds(
    flags_job.Flag,
    name=flag_names,
    version=st.integers(1, 50),
    enabled=st.sampled_from([True, True, False]),
    percent=st.sampled_from([0.0, 30.0, 60.0, 100.0]),
    allow=st.lists(st.sampled_from(USERS), max_size=2),
    effective_at=st.none() | hours,
)
any_view = st.builds(flags_job.PageView, user=st.sampled_from(USERS), page=st.just("home"), at=hours)
any_kill = st.tuples(st.lists(flag_names, max_size=2, unique=True), st.none() | hours)
any_batch = st.tuples(
    st.lists(any_kill, max_size=2), st.lists(any_flag, max_size=3), st.lists(any_view, max_size=12)
)


def command(number: int, names: list[str], since: dt.datetime | None) -> bytes:
    more = {} if since is None else {"effective_at": since}
    return command_to("assign", "set", {"killed": names}, id=f"{number}", **more)


@examples(20)
@given(run=st.lists(any_batch, max_size=5), partitions=st.integers(1, 4))
def test_exposures_are_those_of_the_model(run: list[Any], partitions: int) -> None:
    """Flags, kills and views have any times and any order; a replay gives the same bytes."""
    job = BatchRunner(JOB, parallelism=partitions)
    model = Model()
    sent = 0
    for kills, flags, views in run:
        commands = [command(sent + n, *kill) for n, kill in enumerate(kills)]
        sent += len(kills)
        # A user's views come from one partition, since partitions have no order among them.
        halves = [[view for view in views if (view.user < "c") == half] for half in (True, False)]
        inputs: Any = {
            "commands": [("c", commands)],
            "flags": [("f", flags)],
            "views": [(f"v{n}", half) for n, half in enumerate(halves)],
        }
        inputs = {name: [part for part in parts if part[1]] for name, parts in inputs.items()}
        result = run_and_replay(job, inputs, seed=1)
        assert not result.dead_letters
        assert {one.status for one in result.receipts} <= {"ACCEPTED", "VALIDATED", "APPLIED"}
        for names, since in kills:
            model.kill(names, since)
        for flag in flags:
            model.take_flag(flag)
        wanted = [one for view in [*halves[0], *halves[1]] for one in model.exposures(view)]
        found = [
            (one.user, one.flag, one.variant, one.why, one.at, one.control_version)
            for one in result.output("exposures")
        ]
        for user in USERS:
            assert [one for one in found if one[0] == user] == [one for one in wanted if one[0] == user]


def test_buckets_never_change() -> None:
    """The assignment must not depend on the machine or the version of Python."""
    buckets = [round(flags_job.bucket(user, "checkout"), 3) for user in USERS[:3]]
    assert buckets == [75.403, 14.751, 84.264]
    assert round(flags_job.bucket("ann", "dark"), 3) != buckets[0]


def test_a_percentage_is_that_part_of_the_users() -> None:
    """It is about that share of all users, and of one flag's users for another flag."""
    users = [f"user-{number}" for number in range(10_000)]
    on = {flag: {user for user in users if flags_job.bucket(user, flag) < 20} for flag in ("a", "b")}
    found = Counter(flag for flag, some in on.items() for _ in some)
    assert all(1_850 < count < 2_150 for count in found.values())
    assert 330 < len(on["a"] & on["b"]) < 470
