"""Brokers refuse any request of a job, in each way: the job waits or is restarted, and all output is there
once.
"""

from __future__ import annotations

from typing import Any

import pytest
from life import Life, Scenario
from planted_faults import PLANTED
from recording_broker import Refusal
from reliability import note_result
from schedules import Schedule, live_schedule
from topic_kinds import MAIN_TOPICS, TOPIC_KINDS

# In make test only every nth request.
_STRIDE = 18
REFUSALS: dict[str, dict[str, Any]] = {
    "away for a while": {"kind": "away", "seconds": 5.0},
    "away for minutes": {"kind": "away", "seconds": 200.0},
    "coordinators move": {"kind": "moving", "seconds": 20.0},
    "answer lost": {"kind": "answer lost"},
    "request lost": {"kind": "request lost"},
    "fenced": {"kind": "fenced"},
}


def _requests(life: Life, scenario: Scenario) -> int:
    """Return how many requests a scenario makes without faults."""
    told = live_schedule(life, Schedule(0, scenario, ()))
    assert told.outcome.result == "went on", told.outcome.why
    return life.brokers.requests


def _refused(
    life: Life, scenario: Scenario, refusal: str, stride: int, first: int = 1
) -> tuple[int, list[str]]:
    """Return how often faults occurred, at some of the requests, and what went wrong."""
    met, wrong = 0, []
    for at in range(first, _requests(life, scenario) + 1, stride):
        one = Refusal(at=at, **REFUSALS[refusal])
        told = live_schedule(life, Schedule(0, scenario, (), (one,)))
        met += told.faults["broker refuses"]
        if told.outcome.result != "went on":
            wrong.append(f"{one}: {told.outcome.why} {told.trace}")
    return met, wrong


@pytest.mark.parametrize("refusal", REFUSALS)
def test_some_requests_are_refused(life: Life, refusal: str) -> None:
    """The main kind of run with topics is tested."""
    first = 1 + 3 * list(REFUSALS).index(refusal) % _STRIDE
    met, wrong = _refused(life, TOPIC_KINDS[MAIN_TOPICS], refusal, _STRIDE, first)
    assert met
    assert not wrong, wrong[0]


def test_a_lost_answer_shows_a_transaction_that_does_not_ask(life: Life) -> None:
    """A commit whose answer was lost must not be repeated; a task that would repeat it is detected."""
    (fault,) = (fault for fault in PLANTED if "does not ask" in fault.what)
    scenario = TOPIC_KINDS[MAIN_TOPICS]
    with fault.planted():
        found = (
            live_schedule(life, Schedule(0, scenario, (), (Refusal("answer lost", at),)))
            for at in range(20, _requests(life, scenario) + 1)
        )
        assert any(told.outcome.result == "violation" for told in found)


@pytest.mark.chaos
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", TOPIC_KINDS)
def test_each_request_is_refused(life: Life, kind: str, refusal: str) -> None:
    """Every request is refused, in every kind of run."""
    met, wrong = _refused(life, TOPIC_KINDS[kind], refusal, 1)
    fault = f"broker refuses: {refusal}, at each request of {kind}"
    note_result("broker refusals", fault, met, len(wrong), "-k test_each_request_is_refused")
    assert not wrong, "\n".join(wrong)
