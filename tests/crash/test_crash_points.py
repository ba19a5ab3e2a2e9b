"""A crash after each operation of short runs of many kinds: the job continues, and all output is there once."""

from __future__ import annotations

from collections import Counter

import pytest
from crash_model import POWER_LOSSES
from crash_trials import Crash, crash, distinct, record
from life import Life
from reliability import note_result
from run_kinds import MAIN
from topic_kinds import ALL_KINDS, MAIN_TOPICS, TOPIC_KINDS

# In make test only every nth operation, of the main kind and of others.
_MAIN_STRIDE = 4
_STRIDE = 120
CASES = {"kill": (None,), "power loss": POWER_LOSSES}


def _tried(
    life: Life,
    kind: str,
    case: str,
    stride: int,
    *,
    stops: bool = False,
    noted: tuple[str, str] | None = None,
) -> Counter[str]:
    """Crash a kind of run; `noted` is the fault and the command under which the result is recorded."""
    recorded = record(life, ALL_KINDS[kind])
    found: Counter[str] = Counter()
    wrong = []
    for one, tree in distinct(recorded, CASES[case], stride, stops=stops):
        outcome = crash(life, recorded, one, tree)
        found[outcome.result] += 1
        if outcome.result != "went on":
            wrong.append(f"{kind}: {one}: {recorded.ops[one.at - 1]}: {outcome.why}")
    if noted is not None:
        note_result("crash points", noted[0], sum(found.values()), len(wrong), noted[1])
    assert not wrong, "\n".join(wrong)
    return found


def test_after_a_kill_at_any_operation_all_is_there_once(life: Life) -> None:
    """The main kind is killed at every fourth of its operations; `make chaos` takes each."""
    assert _tried(life, MAIN, "kill", _MAIN_STRIDE)["went on"] > 25


def test_after_a_kill_and_a_stop_during_start_all_is_there_once(life: Life) -> None:
    """A half-done micro-batch is completed as planned, even if the next run was stopped before it did so."""
    assert _tried(life, MAIN, "kill", 4 * _MAIN_STRIDE, stops=True)["went on"] > 7


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_kills_at_some_operations_of_all_kinds(life: Life, kind: str) -> None:
    """Each kind of run gives the right result without a crash, and with some."""
    stride = 3 * _STRIDE if kind in TOPIC_KINDS else _STRIDE
    assert _tried(life, kind, "kill", stride)["went on"]


@pytest.mark.parametrize(
    "kind", [MAIN, "rescaled up", "a savepoint", "a journal, three runs", "two sinks", MAIN_TOPICS]
)
def test_power_losses_at_some_operations(life: Life, kind: str) -> None:
    """Unsynced writes may be lost, and the job continues."""
    assert _tried(life, kind, "power loss", 2 * _STRIDE)["went on"]


def _outlived(life: Life, kind: str, stride: int = 1) -> int:
    """Kill the driver at changes to the brokers, while the workers live on; return how often."""
    recorded = record(life, ALL_KINDS[kind])
    places = [at for at, op in enumerate(recorded.ops, 1) if op.kind == "broker"][::stride]
    wrong = []
    for at in places:
        outcome = crash(life, recorded, Crash(at, outlived=True))
        if outcome.result != "went on":
            wrong.append(f"{kind}: {at}: {recorded.ops[at - 1]}: {outcome.why}")
    assert not wrong, "\n".join(wrong)
    return len(places)


def test_workers_may_outlive_their_driver(life: Life) -> None:
    """They commit their open transactions, and the next run writes none of those again."""
    assert _outlived(life, MAIN_TOPICS, 4) > 5


@pytest.mark.chaos
@pytest.mark.parametrize("kind", TOPIC_KINDS)
def test_workers_that_outlive_their_driver(life: Life, kind: str) -> None:
    """All kinds with topics are tested."""
    count = _outlived(life, kind)
    note_result(
        "crash points", f"workers of {kind} that outlive their driver", count, 0, "-k outlive_their_driver"
    )


@pytest.mark.chaos
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_crashes_at_each_operation(life: Life, kind: str, case: str) -> None:
    """Every kind is crashed at every operation."""
    _tried(
        life,
        kind,
        case,
        1,
        noted=(f"{case} at each operation of {kind}", "-k test_crashes_at_each_operation"),
    )


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_kills_at_each_operation_and_a_stop_during_start(life: Life, kind: str) -> None:
    """In addition the next run is stopped while it starts."""
    fault = f"kill at each operation of {kind}, then a stop during start"
    _tried(life, kind, "kill", 1, stops=True, noted=(fault, "-k a_stop_during_start"))
