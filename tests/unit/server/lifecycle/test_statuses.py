"""Job statuses: the complete table of transitions."""

from __future__ import annotations

import itertools

import pytest

from penstock.server.lifecycle.statuses import (
    ENDED,
    TRANSITIONS,
    WITH_DRIVER,
    Desired,
    IllegalTransitionError,
    JobStatus,
    check_transition,
)

LEGAL = """
CREATED    -> STARTING PAUSED FINISHED CANCELED
STARTING   -> RUNNING STOPPING RESTARTING PAUSED FINISHED FAILED CANCELED
RUNNING    -> STOPPING RESTARTING PAUSED FINISHED FAILED CANCELED
STOPPING   -> RESTARTING PAUSED FINISHED FAILED CANCELED
RESTARTING -> STARTING PAUSED FINISHED CANCELED
PAUSED     -> STARTING FINISHED CANCELED
FINISHED   ->
FAILED     ->
CANCELED   ->
"""


def table() -> dict[str, set[str]]:
    rows = (line.split("->") for line in LEGAL.strip().splitlines())
    return {before.strip(): set(after.split()) for before, after in rows}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobStatus, JobStatus)))
def test_a_transition_is_legal_if_the_table_has_it(before: JobStatus, after: JobStatus) -> None:
    """Others are refused, naming both statuses; staying in a status is no transition."""
    if after.value in table()[before.value]:
        check_transition(before, after)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{before} cannot become {after}"):
            check_transition(before, after)


def test_each_status_is_in_the_table() -> None:
    """The table is complete, and final statuses have no transitions."""
    assert set(TRANSITIONS) == set(JobStatus)
    assert {status for status, after in TRANSITIONS.items() if not after} == ENDED
    assert not ENDED & WITH_DRIVER


def test_each_status_is_reached_from_created_and_leads_to_an_end() -> None:
    """Each status is reachable, and from each an end is reachable."""
    assert reachable(JobStatus.CREATED) == set(JobStatus)
    for status in JobStatus:
        assert reachable(status) & ENDED


def test_only_a_start_gives_a_driver() -> None:
    """A job without a driver gets one only through STARTING."""
    for before in set(JobStatus) - WITH_DRIVER:
        assert TRANSITIONS[before] & WITH_DRIVER <= {JobStatus.STARTING}
    assert all(JobStatus.STARTING not in TRANSITIONS[before] for before in WITH_DRIVER)


def test_what_users_want_is_a_status() -> None:
    """A job can reach each of them."""
    assert [desired.status.value for desired in Desired] == [desired.value for desired in Desired]


def reachable(start: JobStatus) -> set[JobStatus]:
    found, new = {start}, {start}
    while new:
        new = {after for before in new for after in TRANSITIONS[before]} - found
        found |= new
    return found
