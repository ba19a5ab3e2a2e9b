"""Latency: a histogram agrees with a plain list; one time can stand for many records."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.latency import (
    LATENCY_BOUNDS_S,
    Latency,
    LatencyCounter,
    add_latencies,
    latency_at,
    percentiles_of,
)
from penstock.metrics.source_times import MOST_POINTS, SourceTimes

NOW_MS = 1_000_000
points = st.lists(st.tuples(st.integers(NOW_MS - 200_000, NOW_MS + 100), st.integers(1, 5)), max_size=40)


def counted(found: list[tuple[int, int]]) -> Latency:
    counter = LatencyCounter()
    for one in found:
        counter.add([one], NOW_MS)
    return counter.latency


def plain(found: list[tuple[int, int]]) -> list[float]:
    """The latency of each output, in seconds, ascending."""
    return sorted(max(0, NOW_MS - time_ms) / 1000 for time_ms, count in found for _ in range(count))


@given(points, points)
def test_a_histogram_counts_as_a_list_does(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    """Compared are each bucket, the sum and the maximum, also merged and after storing."""
    latencies = plain(some + more)
    found = counted(some).plus(counted(more))
    bounds = [-1.0, *LATENCY_BOUNDS_S, math.inf]
    buckets = [sum(low < one <= high for one in latencies) for low, high in itertools.pairwise(bounds)]
    assert list(found.counts) + [0] * (len(buckets) - len(found.counts)) == buckets
    assert not found.counts or found.counts[-1] > 0
    assert found.outputs == len(latencies)
    assert found.sum_s == pytest.approx(sum(latencies), abs=1e-3)
    assert found.longest_s == max(latencies, default=0.0)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Latency) == found


@given(points.filter(bool), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_in_the_bucket_of_that_of_the_list(
    some: list[tuple[int, int]], fraction: float
) -> None:
    """So the error is less than a bucket, and the result never exceeds the maximum."""
    latencies = plain(some)
    expected = latencies[max(0, math.ceil(fraction * len(latencies) - 1e-9) - 1)]
    found = counted(some).quantile_s(fraction)
    bounds = [0.0, *LATENCY_BOUNDS_S, math.inf]
    low, high = next(pair for pair in itertools.pairwise(bounds) if expected <= pair[1])
    assert low <= found <= min(high, latencies[-1])


def test_sinks_without_outputs_have_no_percentiles() -> None:
    """A sink without outputs does not appear."""
    some = {"a": counted([(NOW_MS - 4, 1)]), "b": Latency()}
    assert set(percentiles_of(some)) == {"a"}
    together = add_latencies(some, {"a": counted([(NOW_MS - 4, 2)]), "c": Latency((1,), 0.0)})
    assert (together["a"].outputs, together["c"].outputs) == (3, 1)


sample_times = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


@given(st.lists(st.tuples(sample_times, st.integers(20, 500)), min_size=1, max_size=12), st.integers(0, 300))
def test_outputs_are_attributed_to_records(samples: list[tuple[list[int], int]], outputs: int) -> None:
    """All are attributed evenly: each part of the records has its share of the outputs, give or take one."""
    parts = [SourceTimes.of(times_ms, count) for times_ms, count in samples]
    times = SourceTimes.merged(parts)
    assert times is not None
    assert sum(times.counts) == sum(count for _, count in samples)
    assert len(times.times_ms) <= MOST_POINTS
    assert times.times_ms == sorted(times.times_ms)
    found = times.spread(outputs)
    assert sum(count for _, count in found) == outputs
    known = dict(zip(times.times_ms, times.counts, strict=True))
    if len(known) == len(times.times_ms):
        share = outputs / sum(times.counts)
        assert all(abs(count - known[time_ms] * share) <= 1 for time_ms, count in found)
    assert latency_at(times, outputs, 10_000).outputs == outputs


def test_a_bundle_of_one_record_is_exact() -> None:
    """This holds for any number of outputs; merging nothing gives nothing."""
    times = SourceTimes.merged([None, SourceTimes.at(990, 1), None])
    assert times == SourceTimes([990], [1])
    assert latency_at(times, 3, 1000) == Latency((0, 0, 0, 0, 0, 0, 3), 0.03, 0.01)
    assert SourceTimes.merged([None, None]) is None


def test_neighbours_become_one_point() -> None:
    """So a thousand bundles take no more space than one, and the mean is kept."""
    many = SourceTimes.merged(SourceTimes.at(time_ms, 1) for time_ms in range(1000))
    assert many is not None
    assert len(many.times_ms) <= MOST_POINTS
    assert sum(many.counts) == 1000
    ((middle, _),) = many.spread(1)
    assert middle == pytest.approx(500, abs=20)
