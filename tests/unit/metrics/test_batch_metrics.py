"""BatchMetrics: lines in the checkpoint that readers get whole, in order, and within a bound."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_metrics import metrics_of_batch

from penstock.base.instants import instant_of
from penstock.errors import CheckpointError, JobDefinitionError
from penstock.jobs.settings import RunSettings
from penstock.metrics.batch_metrics import (
    METRICS_FOLDER,
    BatchMetrics,
    BatchMetricsTail,
    BatchMetricsWriter,
    Lag,
    StepBatchMetrics,
    newest_batch_metrics,
    read_batch_metrics,
)

BEGUN = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def metrics(batch: int, **more: Any) -> BatchMetrics:
    """Return the metrics of a micro-batch that started at a whole second and took half of one."""
    return metrics_of_batch(batch, BEGUN + dt.timedelta(seconds=batch), 0.5, **more)


def batches(found: list[BatchMetrics]) -> list[int]:
    return [metrics.batch for metrics in found]


def segments(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / METRICS_FOLDER).iterdir())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Every field is read, also by another run that continues after it."""
    first = metrics(
        0,
        phases={"processing": 0.25},
        idle_s=1.5,
        records_in={"visits": 3},
        records_out={"out": 2},
        dead_letters=1,
        commands={"applied": 1},
        lag={"visits": Lag(files=2, bytes=30, seconds=0.5), "topic": Lag()},
        steps={"count": StepBatchMetrics(records=3, skew=1.5, keys=2, watermark=BEGUN)},
    )
    for found in (first, metrics(1)):
        writer = BatchMetricsWriter(tmp_path)
        writer.append(found)
        writer.close()
    assert read_batch_metrics(tmp_path) == [first, metrics(1)]
    assert newest_batch_metrics(tmp_path) == metrics(1)
    assert len(segments(tmp_path)) == 1


def test_a_checkpoint_without_metrics_has_none(tmp_path: Path) -> None:
    """The checkpoint may be missing, or its first line incomplete."""
    for folder in (tmp_path, tmp_path / "no"):
        assert read_batch_metrics(folder) == []
        assert newest_batch_metrics(folder) is None
        assert BatchMetricsTail(folder).read() == []
    (tmp_path / METRICS_FOLDER).mkdir()
    (tmp_path / METRICS_FOLDER / "0000000001.jsonl").write_text('{"format":1,"job":"roo')
    assert read_batch_metrics(tmp_path) == []
    assert newest_batch_metrics(tmp_path) is None


def test_half_a_line_is_not_seen_and_goes(tmp_path: Path) -> None:
    """The next run removes a killed run's partial line, and a reader waits meanwhile."""
    writer = BatchMetricsWriter(tmp_path)
    writer.append(metrics(0))
    writer.close()
    new = BatchMetricsTail(tmp_path, from_start=True)
    (segment,) = segments(tmp_path)
    with segment.open("ab") as file:
        file.write(b'{"format":1,"job"')
    assert batches(read_batch_metrics(tmp_path)) == [0]
    assert newest_batch_metrics(tmp_path) == metrics(0)
    assert batches(new.read()) == [0]
    writer = BatchMetricsWriter(tmp_path)
    writer.append(metrics(1))
    assert batches(new.read()) == [1]
    assert batches(read_batch_metrics(tmp_path)) == [0, 1]


@given(data=st.data(), segment_lines=st.integers(1, 5), kept=st.integers(2, 4))
def test_a_reader_beside_the_writer_sees_all_that_is_kept(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, segment_lines: int, kept: int
) -> None:
    """Lines come in order, each once, however both take turns; the oldest are dropped, within the bound."""
    folder = tmp_path_factory.mktemp("metrics")
    line = len(b"\n") + max(len(read_one(folder, n)) for n in (0, 60))
    segment_bytes = segment_lines * line
    writer = BatchMetricsWriter(folder, segment_bytes=segment_bytes, max_bytes=kept * segment_bytes)
    new = BatchMetricsTail(folder)
    seen: list[int] = []
    written = 0
    for turn in data.draw(st.lists(st.sampled_from(["write", "read", "restart"]), max_size=60)):
        if turn == "write":
            writer.append(metrics(written))
            written += 1
        elif turn == "restart":
            writer.close()
        else:
            seen += batches(new.read())
    seen += batches(new.read())
    there = batches(read_batch_metrics(folder))
    assert there == list(range(written))[-len(there) :] if there else written == 0
    assert there[-1:] == seen[-1:]
    assert seen == sorted(set(seen))
    # Only lines dropped before the reader reached them are missing.
    assert set(there) <= set(seen)
    assert (
        sum(path.stat().st_size for path in (folder / METRICS_FOLDER).glob("*"))
        <= kept * segment_bytes + line
    )


def read_one(folder: Path, batch: int) -> bytes:
    """The line of a micro-batch."""
    writer = BatchMetricsWriter(folder / f"one-{batch}")
    (folder / f"one-{batch}").mkdir()
    writer.append(metrics(batch))
    writer.close()
    (segment,) = segments(folder / f"one-{batch}")
    return segment.read_bytes().rstrip(b"\n")


def test_since_a_time(tmp_path: Path) -> None:
    """It gives the micro-batches that ended later, wherever segments begin."""
    writer = BatchMetricsWriter(tmp_path, segment_bytes=1000)
    for batch in range(20):
        writer.append(metrics(batch))
    assert len(segments(tmp_path)) > 5
    for since in (-1.0, 0.4, 0.5, 7.2, 19.4, 19.5, 30.0):
        found = batches(read_batch_metrics(tmp_path, since=BEGUN + dt.timedelta(seconds=since)))
        assert found == [batch for batch in range(20) if batch + 0.5 > since]


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    """The error has the file and the remedy; it also covers an unknown format."""
    writer = BatchMetricsWriter(tmp_path)
    writer.append(metrics(0))
    writer.append(metrics(1))
    writer.close()
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(b'"batch":1', b'"batch":x'))
    with pytest.raises(CheckpointError, match=r"0000000001\.jsonl cannot be read: .*Delete the file"):
        read_batch_metrics(tmp_path)
    segment.write_bytes(whole.replace(b'"format":1', b'"format":2'))
    with pytest.raises(CheckpointError, match=r"format is 2, and this penstock reads 1"):
        newest_batch_metrics(tmp_path)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partly written line is removed, and the next one is written when there is space."""
    writer = BatchMetricsWriter(tmp_path)
    writer.append(metrics(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        writer.append(metrics(1))
    monkeypatch.undo()
    writer.append(metrics(2))
    assert batches(read_batch_metrics(tmp_path)) == [0, 2]


def test_a_line_costs_little(tmp_path: Path) -> None:
    """It must not slow a micro-batch, even with ten steps and streams."""
    names = [f"name-{number}" for number in range(10)]
    found = metrics(
        0,
        records_in=dict.fromkeys(names, 123_456),
        records_out=dict.fromkeys(names, 123_456),
        lag=dict.fromkeys(names, Lag(files=2, bytes=300_000, seconds=0.5)),
        steps=dict.fromkeys(
            names, StepBatchMetrics(123_456, 1.05, 50_000, 1.01, 1_000_000, watermark=instant_of(0))
        ),
    )
    writer = BatchMetricsWriter(tmp_path)
    times = []
    for _ in range(200):
        begun_s = time.perf_counter()
        writer.append(found)
        times.append(time.perf_counter() - begun_s)
    assert min(times) < 0.001


@given(
    st.integers(0, 30), st.integers(1, 12), st.none() | st.integers(-1, 31), st.none() | st.integers(-1, 31)
)
@examples(25)
def test_the_newest_are_found_from_the_end(
    count: int, most: int, after: int | None, since: int | None
) -> None:
    """The result equals the end of the full list, for any number of segments."""
    with tempfile.TemporaryDirectory() as folder:
        writer = BatchMetricsWriter(Path(folder), segment_bytes=1000)
        for batch in range(count):
            writer.append(metrics(batch))
        writer.close()
        ended = None if since is None else BEGUN + dt.timedelta(seconds=since + 0.5)
        found = read_batch_metrics(Path(folder), most, after=after, since=ended)
    first = max(-1 if after is None else after, -1 if since is None else since)
    assert batches(found) == list(range(count))[first + 1 :][-most:]


def test_metrics_must_have_some_room() -> None:
    with pytest.raises(JobDefinitionError, match="metrics_mb is 0; it must be at least 1"):
        RunSettings(metrics_mb=0)
