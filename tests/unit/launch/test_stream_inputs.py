"""Inputs from Python: records are written for a stream, once in the life of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import CheckpointError, SchemaError
from penstock.launch.stream_inputs import IteratorFeed, StreamInput
from penstock.records.schemas import record_type


@dataclass
class Reading:
    room: int
    note: str | None = None


READINGS = [Reading(1), Reading(2, "warm"), Reading(3)]
ROWS: list[dict[str, Any]] = [
    {"room": 1, "note": None},
    {"room": 2, "note": "warm"},
    {"room": 3, "note": None},
]


def opened(folder: Path, given: Any) -> StreamInput:
    found = StreamInput("readings", record_type(Reading), folder)
    found.open(given)
    return found


def written(folder: Path) -> list[Any]:
    """Return all that was written for the stream, in order."""
    files = sorted((folder / "inputs" / "readings").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize(
    "given",
    [
        READINGS,
        tuple(READINGS),
        ROWS,
        pa.Table.from_pylist(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype({"room": "int32", "note": "category"}),
        pa.Table.from_pylist([{**row, "more": 1} for row in ROWS]),
        pa.RecordBatch.from_pylist(ROWS),
    ],
    ids=["objects", "tuple", "dicts", "arrow", "pandas", "other types", "more columns", "batch"],
)
def test_records_and_frames_are_written_alike(given: Any, tmp_path: Path) -> None:
    """They get the stream's types."""
    stream = opened(tmp_path, given)
    assert written(tmp_path) == ROWS
    assert stream.uri == f"parquet:{tmp_path}/inputs/readings"


def test_a_column_that_may_be_null_may_be_left_out(tmp_path: Path) -> None:
    """It is then null in all records."""
    opened(tmp_path, pa.table({"room": [7]}))
    assert written(tmp_path) == [{"room": 7, "note": None}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"room": "attic"}], "Record 0 for the stream 'readings' does not fit: Expected `int`, got `str`"),
        ([{"room": 1, "rom": 2}], "has a field 'rom', but Reading has only room, note"),
        ([Reading(1), object()], "does not fit Reading"),
        (pa.table({"note": ["a"]}), "has no column 'room'; it has note"),
        (pa.table({"room": ["attic"]}), "'room' of the frame for the stream 'readings' is string"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, message: str, tmp_path: Path) -> None:
    """The error names the record, the field and the type."""
    with pytest.raises(SchemaError, match=message):
        opened(tmp_path, given)


def test_the_same_records_are_written_once(tmp_path: Path) -> None:
    """A restarted run continues, even if the same records are given in another form."""
    opened(tmp_path, READINGS)
    opened(tmp_path, pd.DataFrame(ROWS))
    assert written(tmp_path) == ROWS


@pytest.mark.parametrize("given", [READINGS[:2], [*READINGS, Reading(4)], READINGS[::-1], []])
def test_other_records_are_refused_by_the_same_checkpoint(given: Any, tmp_path: Path) -> None:
    """They would be confused with those already read."""
    opened(tmp_path, READINGS)
    with pytest.raises(
        CheckpointError, match=r"began with other records for the stream 'readings'.*run\.send"
    ):
        opened(tmp_path, given)


def test_what_a_broken_start_has_left_is_written_anew(tmp_path: Path) -> None:
    """Nothing has read it, since the note of completeness is written last."""
    opened(tmp_path, READINGS[:1])
    (tmp_path / "inputs" / "readings.beginning.json").unlink()
    opened(tmp_path, READINGS)
    assert written(tmp_path) == ROWS


def test_what_is_sent_comes_behind(tmp_path: Path) -> None:
    """This holds after a restart; records sent twice are written twice."""
    opened(tmp_path, READINGS[:1]).send([READINGS[1]])
    again = opened(tmp_path, READINGS[:1])
    assert again.send([READINGS[2], READINGS[2]]) == 2
    assert written(tmp_path) == [*ROWS, ROWS[2]]
    assert not again.is_read


def test_an_iterator_that_waits_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """Records that it has given so far are written."""
    stream = opened(tmp_path, None)
    waits, goes_on = threading.Event(), threading.Event()

    def readings() -> Iterator[Reading]:
        yield from READINGS
        waits.set()
        goes_on.wait()

    feed = IteratorFeed(stream, readings(), "readings")
    feed.start()
    assert waits.wait(30)
    feed.stop()
    assert written(tmp_path) == ROWS
    assert feed.error is None
    goes_on.set()


def test_an_iterator_that_fails_tells(tmp_path: Path) -> None:
    """Records that it gave before the error are written."""
    stream = opened(tmp_path, None)

    def readings() -> Iterator[Reading]:
        yield READINGS[0]
        raise OSError("the sensor is gone")

    feed = IteratorFeed(stream, readings(), "readings")
    feed.start()
    # A feed that is stopped takes no more.
    feed._threads[0].join(30)
    feed.stop()
    assert written(tmp_path) == ROWS[:1]
    assert str(feed.error) == "the sensor is gone"
