"""Restart strategies: text forms, and decisions compared with references in plain Python."""

from __future__ import annotations

import doctest
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import durations
from penstock.errors import JobDefinitionError
from penstock.server.lifecycle import restarts
from penstock.server.lifecycle.restarts import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartHistory,
    RestartStrategy,
    decide_restart,
    parse_strategy,
    strategy_text,
)

MS = st.integers(1, 10_000_000)
COUNTS = st.integers(1, 20)
EXPONENTIAL = st.builds(
    lambda lengths, *more: ExponentialDelay(*sorted(lengths), *more),
    st.tuples(MS, MS),
    st.floats(1, 100),
    st.floats(0, 1),
    MS,
    st.none() | COUNTS,
)
STRATEGIES = st.one_of(
    st.just(NoRestart()),
    st.builds(FixedDelay, COUNTS, MS),
    st.builds(FailureRate, COUNTS, MS, MS),
    EXPONENTIAL,
)
# The durations of a job's runs.
RUNS = st.lists(st.integers(0, 20_000_000), max_size=30)


@given(STRATEGIES)
def test_the_text_of_a_strategy_means_the_strategy(strategy: RestartStrategy) -> None:
    """The displayed text can be used as input."""
    assert parse_strategy(strategy_text(strategy)) == strategy


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("none", NoRestart()),
        ("fixed-delay", FixedDelay(1, 1000)),
        ("fixed-delay:attempts=3,delay=10s", FixedDelay(3, 10_000)),
        (" fixed-delay : delay = 1.5s ", FixedDelay(1, 1500)),
        ("exponential-delay", ExponentialDelay(1000, 60_000, 1.5, 0.1, 3_600_000, None)),
        (
            "exponential-delay:initial=2s,max=5m,multiplier=2,jitter=0,stable=1d,attempts=9",
            ExponentialDelay(2000, 300_000, 2.0, 0.0, 86_400_000, 9),
        ),
        ("failure-rate:failures=5,interval=10m,delay=0s", FailureRate(5, 600_000, 0)),
        ({"strategy": "fixed-delay", "attempts": 3, "delay": "10s"}, FixedDelay(3, 10_000)),
        ({"strategy": "exponential-delay", "jitter": 0.5}, ExponentialDelay(jitter=0.5)),
    ],
)
def test_strategies_are_read(text: Any, strategy: RestartStrategy) -> None:
    """Text and JSON are accepted; missing values have Flink's defaults."""
    assert parse_strategy(text) == strategy


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        ("sometimes", ["'sometimes' is not known", "none, fixed-delay, exponential-delay, failure-rate"]),
        ("", ["'' is not known"]),
        ("none:delay=1s", ["no parameter 'delay'", "takes no parameters"]),
        ("fixed-delay:retries=3", ["no parameter 'retries'", "attempts, delay"]),
        ("fixed-delay:3:10s", ["'fixed-delay:3:10s'", "NAME:PARAMETER=VALUE", "attempts=3,delay=10s"]),
        ("fixed-delay:", ["NAME:PARAMETER=VALUE"]),
        ("fixed-delay:attempts=3,attempts=4", ["attempts twice"]),
        ("fixed-delay:attempts=0", ["attempts of the restart strategy fixed-delay is 0", "from 1"]),
        ("fixed-delay:attempts=many", ["'many'", "whole number"]),
        ("fixed-delay:delay=10", ["delay of the restart strategy", "'10'", "'10m'"]),
        ("fixed-delay:delay=1000d", ["'1000d'", "at most 365d"]),
        ("exponential-delay:multiplier=0.5", ["multiplier", "'0.5'", "from 1 to 100"]),
        ("exponential-delay:jitter=nan", ["jitter", "'nan'", "from 0 to 1"]),
        ("exponential-delay:initial=2m", ["initial=2m", "max=1m", "not be longer"]),
        ({"attempts": 3}, ['{"strategy": "fixed-delay", "attempts": 3}']),
        ({"strategy": "fixed-delay", "attempts": True}, ["True", "whole number"]),
        ({"strategy": "fixed-delay", "delay": 10}, ["10", "number with a unit"]),
    ],
)
def test_wrong_strategies_are_refused(given_: Any, parts: list[str]) -> None:
    """The error says what is wrong and what would be right."""
    with pytest.raises(JobDefinitionError) as error:
        parse_strategy(given_)
    assert [part for part in parts if part not in str(error.value)] == []


def delays(strategy: RestartStrategy, runs: list[int], job_id: str = "job") -> list[int | None]:
    """Return the decision at each failure of a job with these runs; it ends with the first None."""
    history, now_ms, found = RestartHistory(), 0, []
    for run_ms in runs:
        now_ms += run_ms
        # What is stored between two failures is restored unchanged.
        history = msgspec.json.decode(msgspec.json.encode(history), type=RestartHistory)
        decided = decide_restart(strategy, history, job_id, now_ms)
        found.append(decided.delay_ms)
        if decided.delay_ms is None:
            break
        history = decided.history
        now_ms += decided.delay_ms
    return found


@given(RUNS)
def test_none_never_starts_again(runs: list[int]) -> None:
    """The job fails at the first failure."""
    assert delays(NoRestart(), runs) == [None for _ in runs[:1]]


@given(st.builds(FixedDelay, COUNTS, MS), RUNS)
def test_fixed_delay_starts_again_so_often(strategy: FixedDelay, runs: list[int]) -> None:
    """The delay is the same each time, however long the job ran."""
    wanted = [strategy.delay_ms] * min(strategy.attempts, len(runs))
    assert delays(strategy, runs) == wanted + [None] * (len(runs) > strategy.attempts)


@given(st.builds(FailureRate, COUNTS, MS, MS), RUNS)
def test_failure_rate_gives_up_on_too_many_failures(strategy: FailureRate, runs: list[int]) -> None:
    """It does so exactly when the failures within the last interval exceed the limit."""
    wanted: list[int | None] = []
    times: list[int] = []
    now_ms = 0
    for run_ms in runs:
        now_ms += run_ms
        times.append(now_ms)
        many = sum(now_ms - time_ms < strategy.interval_ms for time_ms in times)
        wanted.append(strategy.delay_ms if many <= strategy.failures else None)
        if many > strategy.failures:
            break
        now_ms += strategy.delay_ms
    assert delays(strategy, runs) == wanted


@given(st.builds(ExponentialDelay, jitter=st.just(0.0), stable_ms=MS), RUNS)
def test_exponential_delay_grows_until_the_job_is_stable(strategy: ExponentialDelay, runs: list[int]) -> None:
    """It grows by the multiplier up to the maximum; a run of the stable duration resets it."""
    wanted, delay_ms = [], float(strategy.initial_ms)
    for number, run_ms in enumerate(runs):
        if number and run_ms >= strategy.stable_ms:
            delay_ms = float(strategy.initial_ms)
        wanted.append(delay_ms)
        delay_ms = min(delay_ms * strategy.multiplier, strategy.max_ms)
    assert delays(strategy, runs) == pytest.approx(wanted, abs=1)


@given(EXPONENTIAL, RUNS, st.text(max_size=5))
def test_jitter_spreads_within_bounds_and_repeats(
    strategy: ExponentialDelay, runs: list[int], job_id: str
) -> None:
    """The same job gets the same delays each time, between the minimum and the maximum."""
    found = delays(strategy, runs, job_id)
    assert found == delays(strategy, runs, job_id)
    assert all(strategy.initial_ms <= delay <= strategy.max_ms for delay in found if delay is not None)
    if strategy.attempts is None:
        assert None not in found


def test_jitter_differs_between_jobs_and_attempts() -> None:
    """Jobs that failed together do not restart together, and successive delays differ."""
    strategy = ExponentialDelay(1000, 100_000, 1.0, 1.0)
    many = {delay for n in range(50) for delay in delays(strategy, [0] * 10, f"job-{n}")}
    assert len(many) > 200


def test_attempts_of_exponential_delay_count_since_the_job_was_stable() -> None:
    """A job that is stable now and then never exhausts them."""
    strategy = ExponentialDelay(attempts=2, stable_ms=1000)
    assert None not in delays(strategy, [10, 5000] * 5)
    assert delays(strategy, [10, 10, 10])[-1] is None


@given(STRATEGIES, st.lists(st.integers(-(10**12), 10**13), max_size=20))
def test_a_clock_that_jumps_leaves_every_decision_in_bounds(
    strategy: RestartStrategy, times: list[int]
) -> None:
    """For any clock, a delay is one of the strategy's, and the stored history is bounded."""
    history = RestartHistory()
    for now_ms in times:
        decided = decide_restart(strategy, history, "job", now_ms)
        history = decided.history
        assert decided.delay_ms is None or 0 <= decided.delay_ms <= 10_000_000
        assert len(history.recent_ms) <= 21
        assert decided.reason


def test_a_clock_that_went_back_does_not_hold_failures_for_ever() -> None:
    """A failure with a future time counts as one of now, and expires with its interval."""
    strategy = FailureRate(failures=1, interval_ms=1000)
    first = decide_restart(strategy, RestartHistory(), "job", 10**12)
    second = decide_restart(strategy, first.history, "job", 0)
    assert second.delay_ms is None
    assert decide_restart(strategy, second.history, "job", 5000).delay_ms == 1000


def test_reasons_are_told() -> None:
    """Events show them to users."""
    assert decide_restart(FixedDelay(3), RestartHistory(attempts=1), "j", 0).reason == "restart 2 of 3"
    assert (
        decide_restart(FixedDelay(3), RestartHistory(attempts=3), "j", 0).reason == "it was restarted 3 times"
    )
    assert "2 failures within 1m" in decide_restart(FailureRate(), RestartHistory(1, 0, (5,)), "j", 9).reason


@pytest.mark.parametrize("module", [restarts, durations])
def test_examples_run(module: Any) -> None:
    """The docstrings' examples are right."""
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0
