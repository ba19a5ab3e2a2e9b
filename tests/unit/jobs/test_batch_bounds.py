"""Bounds of micro-batches: how many records of a topic go into one follows from how large they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.parse import parse_binding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.jobs.batch_bounds import BatchBounds, RecordSize, TopicBounds, next_limit

MIB = 1 << 20
BOUNDS = TopicBounds(2_000_000, 256 * MIB)


def test_the_first_micro_batch_is_safe_for_the_largest_records() -> None:
    """Nobody knows yet how large they are, and Kafka's own limit is 1 MiB."""
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
    """It falls as soon as it is twice too high, and rises where micro-batches are full, so that queries continue."""
    assert next_limit(BOUNDS, mean, limit, records) == wanted


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 2000)), min_size=1), st.integers(1, 3000))
def test_limits_come_to_rest(batches: list[tuple[int, int]], size: int) -> None:
    """Whatever came before, records of one size soon change the limit no more, and keep its bound by twice at most."""
    mean, limit = RecordSize(), 0
    for records, each in [*batches, *[(5000, size)] * 12]:
        mean.see(records, records * each)
        limit = next_limit(BOUNDS, mean.mean_bytes, limit, records)
    assert mean.mean_bytes is not None
    assert next_limit(BOUNDS, mean.mean_bytes, limit, 5000) == limit
    assert limit * mean.mean_bytes <= 2 * BOUNDS.max_bytes + mean.mean_bytes


def test_a_few_large_records_among_many_change_little() -> None:
    """A quiet stream has micro-batches of three records, which may be the largest."""
    mean = RecordSize()
    mean.see(10_000, 10_000 * 100)
    mean.see(3, 3 * MIB)
    assert mean.mean_bytes == pytest.approx(414, abs=1)
    mean.see(0, 0)
    assert mean.mean_bytes == pytest.approx(414, abs=1)


def test_a_job_begins_small_and_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    """The next run begins with the size that this one has seen; a file that cannot be read is as none."""
    checkpoint = Checkpoint.open(str(tmp_path))
    bounds = BatchBounds(checkpoint, {"hits": BOUNDS})
    assert (bounds.limits, bounds.are_outdated) == ({"hits": 256}, False)
    bounds.see({"hits": 256, "other": 7}, {"hits": 256 * 1024, "other": 7})
    assert bounds.are_outdated
    assert bounds.changes() == [
        "A micro-batch of 'hits' reads at most 262,144 records from now on, since a record has about 1.0 KiB."
    ]
    assert bounds.renew() == {"hits": 262_144}
    assert not bounds.are_outdated
    assert bounds.changes() == []
    again = BatchBounds(checkpoint, {"hits": BOUNDS, "new": BOUNDS})
    assert again.limits == {"hits": 262_144, "new": 256}
    (tmp_path / "record-bytes.json").write_text("{")
    assert BatchBounds(checkpoint, {"hits": BOUNDS}).limits == {"hits": 256}


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
    """Whoever gives a number of records has chosen; control streams are read to their end before data."""
    found = parse_binding("hits", f"kafka://h:1/t{parameters}", role)  # type: ignore[arg-type]
    assert (found.max_records_per_batch, found.max_bytes_per_batch) == (records, max_bytes)  # type: ignore[union-attr]
