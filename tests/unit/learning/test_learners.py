"""Learners: their state equals plain formulas, and columns give the same bits as single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.errors import SchemaError
from penstock.learning import in_order
from penstock.learning.in_order import learn_in_order, score_all

LEARNERS: dict[str, ps.Learner] = {
    "moments": ps.Moments("a"),
    "exponential mean": ps.ExponentialMean("a", 0.3),
    "covariance": ps.Covariance("a", "b"),
    "quantile": ps.Quantile("a", 0.8),
    "histogram": ps.Histogram("a", [-1.0, 0.0, 2.5]),
    "linear": ps.LinearRegression("a", "b", target="y", rate=0.05, decay=0.01),
    "logistic": ps.LogisticRegression("a", "b", target="y", rate=0.5),
}
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def learn_all(learner: ps.Learner, records: Sequence[dict[str, float]]) -> Any:
    """Return the weights after learning these records one by one."""
    weights: Any = {name: np.float64(value) for name, value in learner.start().items()}
    for record in records:
        weights = learner.learn(weights, {name: np.float64(value) for name, value in record.items()})
    return weights


def made(count: int, seed: int = 1) -> list[dict[str, float]]:
    random = np.random.default_rng(seed)
    return [{"a": a, "b": 2 * a + b, "y": float(a > 0)} for a, b in random.normal(size=(count, 2)).tolist()]


def test_moments_are_those_of_all_values() -> None:
    """The score is the distance in standard deviations."""
    records = made(200)
    values = np.array([record["a"] for record in records])
    weights = learn_all(LEARNERS["moments"], records)
    assert weights["count"] == 200
    assert weights["mean"] == pytest.approx(values.mean())
    assert weights["squares"] / 199 == pytest.approx(values.var(ddof=1))
    score = LEARNERS["moments"].score(weights, {"a": np.float64(3)})
    assert score == pytest.approx((3 - values.mean()) / values.std(ddof=1))


def test_the_covariance_is_that_of_all_records() -> None:
    """The score is the Mahalanobis distance."""
    records = made(300)
    values = np.array([(record["a"], record["b"]) for record in records])
    weights = learn_all(LEARNERS["covariance"], records)
    expected = np.cov(values.T)
    found = [weights[f"product_{one}_{other}"] / 299 for one, other in ("aa", "ab", "bb")]
    assert found == pytest.approx([expected[0, 0], expected[0, 1], expected[1, 1]])
    away = np.array([1.0, -1.0]) - values.mean(axis=0)
    distance = np.sqrt(away @ np.linalg.inv(expected) @ away)
    score = LEARNERS["covariance"].score(weights, {"a": np.float64(1), "b": np.float64(-1)})
    assert score == pytest.approx(distance, rel=1e-6)


def test_an_exponential_mean_forgets() -> None:
    """The newest value has its share."""
    learner = ps.ExponentialMean("a", 0.5)
    weights = learn_all(learner, [{"a": 8.0}, {"a": 4.0}, {"a": 0.0}])
    assert (weights["count"], weights["mean"]) == (3, 3.0)
    # Values with the weights 1/4, 1/4 and 1/2.
    assert weights["variance"] == pytest.approx((64 + 16) / 4 - 9)


def test_regressions_find_what_is_there() -> None:
    """Cases are a line without noise, and a threshold."""
    random = np.random.default_rng(3)
    records = [{"a": a, "b": b, "y": 3 * a - 2 * b + 1} for a, b in random.normal(size=(3000, 2)).tolist()]
    weights = learn_all(ps.LinearRegression("a", "b", target="y", rate=0.05), records)
    assert [weights[name] for name in ("bias", "of_a", "of_b")] == pytest.approx([1, 3, -2], abs=1e-6)
    logistic = LEARNERS["logistic"]
    weights = learn_all(logistic, made(2000))
    chances = logistic.score(weights, {"a": np.array([-1.0, 1.0]), "b": np.array([-2.0, 2.0])})
    assert chances[0] < 0.05 < 0.95 < chances[1]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_quantile_is_near_that_of_all_values(share: float) -> None:
    """Values have several distributions; the markers are sorted, and the outer ones are minimum and maximum."""
    random = np.random.default_rng(4)
    for values in (random.normal(size=900), random.exponential(size=900), random.random(900)):
        weights = learn_all(ps.Quantile("a", share), [{"a": value} for value in values.tolist()])
        found = (values < float(ps.Quantile("a", share).score(weights, {"a": np.float64(0)}))).mean()
        assert found == pytest.approx(share, abs=0.03)
        markers = [weights[f"value_{at}"] for at in range(1, 6)]
        assert markers == sorted(markers)
        assert (markers[0], markers[4]) == (values.min(), values.max())


@given(st.lists(NUMBERS, min_size=1, max_size=5))
@examples(20)
def test_a_quantile_of_few_values_is_the_nearest(values: list[float]) -> None:
    """Their order does not matter."""
    weights = learn_all(ps.Quantile("a", 0.5), [{"a": value} for value in values])
    expected = sorted(values)[int(np.floor(0.5 * (len(values) - 1) + 0.5))]
    assert float(ps.Quantile("a", 0.5).score(weights, {"a": np.float64(0)})) == expected


def test_a_histogram_counts() -> None:
    """A bound belongs to the bin below it."""
    learner = LEARNERS["histogram"]
    weights = learn_all(learner, [{"a": a} for a in (-5, -1, 0, 1, 99)])
    assert weights == {"up_to_minus_1": 2, "up_to_0": 1, "up_to_2.5": 1, "beyond": 1}
    assert learner.score(weights, {"a": np.float64(0)}) == 0.6


@pytest.mark.parametrize("name", LEARNERS)
@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), NUMBERS, NUMBERS), max_size=40),
    few=st.sampled_from([1, 2, 4, 100]),
    cut=st.integers(0, 40),
)
@examples(40)
def test_columns_learn_what_single_records_teach(
    name: str, rows: list[tuple[int, float, float]], few: int, cut: int
) -> None:
    """Weights and scores are equal to the bit, for any cuts and any number of keys at once."""
    learner = LEARNERS[name]
    kinds = learner.weight_types()
    numbers = {int: np.int64, float: np.float64}
    expected: dict[int, dict[str, Any]] = {}
    expected_scores = []
    for key, a, b in rows:
        record = {"a": np.float64(a), "b": np.float64(b), "y": np.float64(a > b)}
        weights = expected.get(key)
        expected_scores.append(np.nan if weights is None else float(learner.score(weights, record)))
        found = learner.learn(
            {n: numbers[kinds[n]](v) for n, v in (weights or learner.start()).items()}, record
        )
        expected[key] = {n: numbers[kinds[n]](v) for n, v in found.items()}
    present = np.zeros(5, bool)
    columns = {n: np.zeros(5, numbers[kind]) for n, kind in kinds.items()}
    scores: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_order, "_FEW", few)
        for part in (rows[:cut], rows[cut:]):
            keys = np.array([key for key, _, _ in part], np.int64)
            a, b = (np.array([row[place] for row in part], np.float64) for place in (1, 2))
            records = {"a": a, "b": b, "y": (a > b).astype(np.float64)}
            learned = learn_in_order(learner, present, columns, keys, records)
            present[learned.keys] = True
            for n, column in learned.weights.items():
                columns[n][learned.keys] = column
            scores += learned.scores.tolist()
    assert np.array(scores).tobytes() == np.array(expected_scores, np.float64).tobytes()
    for key in range(5):
        assert present[key] == (key in expected)
        for n in kinds if key in expected else ():
            assert columns[n][key].tobytes() == expected[key][n].tobytes(), n
    probe = {"a": np.full(5, 0.5), "b": np.full(5, -0.5)}
    for key, score in enumerate(score_all(learner, present, columns, np.arange(5), probe)):
        single = {n: v[0] for n, v in probe.items()}
        wanted = learner.score(expected[key], single) if key in expected else np.nan
        assert np.float64(score).tobytes() == np.float64(wanted).tobytes()


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: ps.Covariance("a", "a"), "different fields"),
        (lambda: ps.Covariance(), "different fields"),
        (lambda: ps.Covariance(*[f"f{n}" for n in range(31)]), "at most 30"),
        (lambda: ps.Covariance("a", ridge=0), "above 0"),
        (lambda: ps.ExponentialMean("a", 1.5), "up to 1"),
        (lambda: ps.LinearRegression("a", target="a"), "different fields"),
        (lambda: ps.LinearRegression("a", target="y", rate=0), "above 0"),
        (lambda: ps.Quantile("a", 1.0), "between 0 and 1"),
        (lambda: ps.Histogram("a", []), "ascend"),
        (lambda: ps.Histogram("a", [2, 1]), "ascend"),
        (lambda: ps.Histogram("a", [1.0000001, 1.0000002]), "six digits"),
        (lambda: ps.LearnedState(ps.Moments), "takes a learner"),  # type: ignore[arg-type]
        (lambda: ps.LearnedState(ps.Learner("a")), "no weights"),
    ],
)
def test_what_cannot_be_learned_is_refused(declare: Any, reason: str) -> None:
    """The error is a sentence at the declaration."""
    with pytest.raises(SchemaError, match=reason):
        declare()
