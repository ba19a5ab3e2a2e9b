"""The sessions equal those of a model in plain Python, and every click is in one of them or late."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest
from example_jobs import beside, loaded
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.testing.batch_runner import BatchRunner

JOB, sessions_job = loaded("sessions", "sessions_job")
feed = beside("sessions", "feed")
reference = beside("sessions", "session_reference")

Record = dict[str, Any]


def as_click(click: Record) -> Any:
    return sessions_job.Click(click["user"], click["page"], reference.at(click))


def compared(batches: list[list[Record]]) -> tuple[list[Record], list[Record]]:
    """Run the job and the model on micro-batches of clicks; return the sessions and late clicks of both."""
    job, model = BatchRunner(JOB, parallelism=2), reference.Model()
    sessions: list[Record] = []
    late: list[Any] = []
    for number, clicks in enumerate([*batches, None]):
        if clicks is None:
            result = job.run({}, ends=True)
            model.end()
        else:
            result = job.run({"clicks": [("", [as_click(click) for click in clicks])]}, seed=number)
            model.take(clicks)
        assert not result.dead_letters
        sessions += [dataclasses.asdict(session) for session in result.output("sessions")]
        late += result.output("late")
        order = "user", "start"
        assert sorted(sessions, key=lambda one: [one[name] for name in order]) == sorted(
            model.sessions, key=lambda one: [one[name] for name in order]
        )
    assert sorted(late, key=repr) == sorted(map(as_click, model.late), key=repr)
    assert sum(one["clicks"] for one in sessions) + len(late) == sum(map(len, batches))
    return sessions, model.late


@pytest.mark.parametrize("users", [1, 12])
def test_a_morning_of_clicks_gives_the_sessions_of_the_model(users: int) -> None:
    sessions, late = compared(feed.hours(users))
    assert len(sessions) > 4 * users
    assert late


click = st.builds(
    lambda user, minute, page: {
        "user": user,
        "page": page,
        "at": (feed.MORNING + dt.timedelta(minutes=minute)).isoformat(),
    },
    st.sampled_from("ab"),
    st.integers(0, 120),
    st.sampled_from(feed.PAGES[:2]),
)


@examples(20)
@given(st.lists(st.lists(click, max_size=8), max_size=6))
def test_any_clicks_give_the_sessions_of_the_model(batches: list[list[Record]]) -> None:
    """Clicks come in any order, also exactly a gap apart, and between two sessions."""
    compared(batches)
