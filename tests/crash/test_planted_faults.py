"""Faults planted into the code are found, so the simulator would have found them."""

from __future__ import annotations

import pytest
from crash_trials import NotRightError, crash, record, some
from life import Life
from planted_faults import PLANTED, PlantedFault
from run_kinds import KINDS
from topic_kinds import ALL_KINDS

_MOST = 500


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.what)
def test_a_planted_fault_is_found(life: Life, fault: PlantedFault) -> None:
    """One of some hundred crashes reveals it, and none does without the fault."""
    with fault.planted():
        recorded = record(life, ALL_KINDS[fault.kind])
        for number, one in enumerate(some(recorded, fault.losses, seed=1, stops=fault.stops), 1):
            if crash(life, recorded, one).result != "went on":
                break
            assert number < _MOST, f"{_MOST} crashes have not shown: {fault.what}"
        else:
            pytest.fail(f"no crash has shown: {fault.what}")
    assert crash(life, record(life, ALL_KINDS[fault.kind]), one).result == "went on"


def test_a_life_that_goes_wrong_without_a_crash_is_told(life: Life) -> None:
    """The result of a scenario is checked before any crash is tried."""
    scenario = KINDS["two sinks"]
    wrong = type(scenario)(
        scenario.job, scenario.runs, {"readings": [*scenario.feed["readings"], [{"room": "z", "value": 1}]]}
    )
    with pytest.raises(NotRightError, match="has of 'z' None"):
        record(life, wrong)
