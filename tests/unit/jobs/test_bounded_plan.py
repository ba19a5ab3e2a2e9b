"""Bounded plans: how many micro-batches a bounded run takes, given the available files and the bindings'
limits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import BindingError
from penstock.jobs.bounded_plan import explain_bounded

COLUMNS = "room STRING NOT NULL, celsius DOUBLE, at TIMESTAMP"
TIMED = f"CREATE STREAM readings ({COLUMNS}, WATERMARK FOR at AS at - INTERVAL '5' SECOND);"
PLAIN = f"CREATE STREAM readings ({COLUMNS});"


def described(text: str) -> ps.Job:
    job = ps.Job("rooms")
    job.sql(f"{text} INSERT INTO hot SELECT room, celsius FROM readings WHERE celsius > 30;")
    return job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_text("x" * 10_000)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "through", "is_late"),
    [
        ("", "1 micro-batch,", "; with one, none is"),
        ("?max_files_per_batch=2", "3 micro-batches,", ""),
        ("?max_bytes_per_batch=25000", "3 micro-batches,", ""),
        ("?max_bytes_per_batch=100", "5 micro-batches,", ""),
    ],
)
def test_files_are_counted_by_the_limits_of_their_binding(
    folder: Path, limit: str, through: str, is_late: str
) -> None:
    """A micro-batch takes whole files, at least one; with a single micro-batch no record is late."""
    head, files, late, _ = explain_bounded(described(TIMED), {"readings": f"jsonl:{folder}{limit}"}).split(
        "\n"
    )
    assert head == f"bounded run from the start: through {through} and one at the end of event time"
    assert files.startswith("   readings: 5 files, 48.8 KiB; at most ")
    assert late.endswith(f"behind the watermark of an earlier micro-batch{is_late}")


def test_without_event_time_nothing_is_late(folder: Path) -> None:
    """The last line explains why Spark's own batch engine does not run the job."""
    found = explain_bounded(described(PLAIN), {"readings": f"jsonl:{folder}"})
    assert found.startswith("bounded run from the start: through 1 micro-batch\n")
    assert "late" not in found
    assert "not as one batch of Spark's own" in found


@pytest.mark.parametrize(
    ("bindings", "said"),
    [
        ({}, "readings: is not bound"),
        ({"readings": "rate:10"}, "readings: what is there, as it comes"),
        (
            {"readings": "kafka://broker:9092/in"},
            "readings: a topic; at most 2,000,000 records in a micro-batch",
        ),
    ],
)
def test_what_cannot_be_counted_is_said(bindings: dict[str, str], said: str) -> None:
    """Planning asks no broker, and the plan says so."""
    found = explain_bounded(described(TIMED), bindings)
    assert found.startswith("bounded run from the start: through micro-batches, and one at the end")
    assert said in found


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error is the same as when the job runs."""
    with pytest.raises(BindingError, match="does not exist"):
        explain_bounded(described(TIMED), {"readings": f"jsonl:{tmp_path / 'nothing'}"})
