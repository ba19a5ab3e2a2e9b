"""Bounds of micro-batches: how many records of a topic one may take follows from their size."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.parse import parse_binding
from penstock.jobs.batch_bounds import BatchBounds, RecordSize, TopicBounds, next_limit
from penstock.sources.batch_limits import BatchLimit, StoredLimit, read_limits

MIB = 1 << 20
BOUNDS = TopicBounds(2_000_000, 256 * MIB)


def test_the_first_micro_batch_is_safe_for_the_largest_records() -> None:
    """Record sizes are unknown at first, so the bound assumes Kafka's limit of 1 MiB."""
    assert next_limit(BOUNDS, None) == 256
    assert next_limit(TopicBounds(100, 256 * MIB), None) == 100
    assert next_limit(TopicBounds(100, 1), None) == 1


@pytest.mark.parametrize(
    ("mean", "limit", "records", "wanted"),
    [
        (100, 256, 256, 2_000_000),
        (100, 256, 10, 256),
        (1024, 256, 200, 262_144),
        (MIB, 262_144, 3, 256),
        (1500, 262_144, 262_144, 262_144),
        (600, 262_144, 262_144, 262_144),
        (10**9, 256, 1, 1),
        (0, 256, 256, 2_000_000),
    ],
)
def test_a_limit_follows_the_size_of_records(mean: float, limit: int, records: int, wanted: int) -> None:
    """It drops once it is twice too high, and rises while micro-batches are full; otherwise it is steady."""
    assert next_limit(BOUNDS, mean, limit, records) == wanted


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 2000)), min_size=1), st.integers(1, 3000))
def test_limits_come_to_rest(batches: list[tuple[int, int]], size: int) -> None:
    """From any history, records of one size soon leave the limit unchanged, within a factor of two of the
    bound.
    """
    mean, limit = RecordSize(), 0
    for records, each in [*batches, *[(5000, size)] * 12]:
        mean.see(records, records * each)
        limit = next_limit(BOUNDS, mean.mean_bytes, limit, records)
    assert mean.mean_bytes is not None
    assert next_limit(BOUNDS, mean.mean_bytes, limit, 5000) == limit
    assert limit * mean.mean_bytes <= 2 * BOUNDS.max_bytes + mean.mean_bytes


def test_a_few_large_records_among_many_change_little() -> None:
    """A quiet stream may have micro-batches of three records that happen to be the largest."""
    mean = RecordSize()
    mean.see(10_000, 10_000 * 100)
    mean.see(3, 3 * MIB)
    assert mean.mean_bytes == pytest.approx(414, abs=1)
    mean.see(0, 0)
    assert mean.mean_bytes == pytest.approx(414, abs=1)


def test_a_job_begins_small_and_continues_with_what_it_has_learned(tmp_path: Path) -> None:
    """The planner follows the limits while the query runs; an unreadable file counts as missing."""
    bounds = BatchBounds(tmp_path, {"hits": BOUNDS})
    planned: BatchLimit = pickle.loads(pickle.dumps(bounds.limits["hits"]))
    assert planned.read() == 256
    bounds.see({"hits": 256, "other": 7}, {"hits": 256 * 1024, "other": 7})
    assert planned.read() == 262_144
    assert list(bounds.notes()) == [
        "A micro-batch of 'hits' reads at most 262,144 records from now on, since a record has about 1.0 KiB."
    ]
    assert list(bounds.notes()) == []
    again = BatchBounds(tmp_path, {"hits": BOUNDS, "new": BOUNDS})
    assert {name: limit.read() for name, limit in again.limits.items()} == {"hits": 262_144, "new": 256}
    (tmp_path / "batch-limits.json").write_text("{")
    assert BatchBounds(tmp_path, {"hits": BOUNDS}).limits["hits"].read() == 256
    (tmp_path / "batch-limits.json").unlink()
    assert (planned.read(), bounds.limits["hits"].read()) == (262_144, 256)


def test_a_limit_is_read_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner asks before each micro-batch."""
    bounds = BatchBounds(tmp_path, {"hits": BOUNDS})
    looks = []

    def read(path: Path) -> dict[str, StoredLimit]:
        looks.append(path)
        return read_limits(path)

    monkeypatch.setattr("penstock.sources.batch_limits.read_limits", read)
    limit = bounds.limits["hits"]
    assert [limit.read() for _ in range(3)] == [256] * 3
    assert len(looks) == 1
    bounds.see({"hits": 200}, {"hits": 200 * 1024})
    bounds.see({"hits": 200}, {"hits": 200 * 1100})
    assert [limit.read() for _ in range(3)] == [262_144] * 3
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("role", "parameters", "records", "max_bytes"),
    [
        ("data", "", 2_000_000, 256 * MIB),
        ("data", "?max_records_per_batch=7", 7, None),
        ("data", "?max_bytes_per_batch=5", 2_000_000, 5),
        ("data", "?max_records_per_batch=7&max_bytes_per_batch=5", 7, 5),
        ("control", "", None, None),
        ("control", "?max_bytes_per_batch=5", None, 5),
        ("sink", "", None, None),
    ],
)
def test_topics_have_bounds_by_role(
    role: str, parameters: str, records: int | None, max_bytes: int | None
) -> None:
    """An explicit number of records is the user's choice; control streams are read to their end before data."""
    found = parse_binding("hits", f"kafka://h:1/t{parameters}", role)  # type: ignore[arg-type]
    assert (found.max_records_per_batch, found.max_bytes_per_batch) == (records, max_bytes)  # type: ignore[union-attr]
