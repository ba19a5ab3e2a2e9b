"""Batch metrics: the metrics of each micro-batch of a job, kept as JSON lines in its checkpoint, up to a limit.

The folder `metrics` has segments of whole lines, `0000000001.jsonl` and so on, oldest first. The run that holds the
checkpoint appends to the newest segment. When that is full, it starts another and deletes the oldest ones beyond the
limit. Readers ignore a line that is not complete yet. docs/metrics.md describes every field.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.base.durable import whole_lines_bytes
from penstock.errors import CheckpointError
from penstock.machine.memory import MemoryUse
from penstock.metrics.latency import Latency

__all__ = [
    "BOUNDS_S",
    "DEFAULT_METRICS_BYTES",
    "METRICS_FOLDER",
    "BatchMetrics",
    "BatchMetricsTail",
    "BatchMetricsWriter",
    "Lag",
    "Mode",
    "ModelMetrics",
    "StepBatchMetrics",
    "Totals",
    "mode_of",
    "newest_batch_metrics",
    "read_batch_metrics",
]

METRICS_FOLDER: Final = "metrics"
"""The folder in a checkpoint that contains the metrics."""

BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds, in seconds, of the buckets by which totals count micro-batches: how long the job worked in them."""

DEFAULT_METRICS_BYTES: Final = 32 << 20

_FORMAT: Final = 1
_SEGMENT_BYTES: Final = 1 << 20


Mode: TypeAlias = Literal["micro-batches", "real time"]
"""How a job runs."""


def mode_of(checkpoint_interval_ms: int) -> Mode:
    """Return the mode of a job with this checkpoint interval."""
    return "real time" if checkpoint_interval_ms else "micro-batches"


class Lag(msgspec.Struct, frozen=True, omit_defaults=True):
    """The backlog in the source of a stream, in the units that the source reports, and how long it has waited.

    `seconds` is how long the oldest part has been waiting; None if that is not known.
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    seconds: float | None = None


class StepBatchMetrics(msgspec.Struct, frozen=True):
    """A step in one micro-batch: the records that it processed, and the state that it has afterwards.

    `skew` is the number of records of the slot with the most, divided by the mean over all slots: 1 if all had the
    same number, None if there were none. `key_skew` is the same for keys. `state_bytes` is the size of the stored
    state, `held_bytes` that of data that waits while the step is paused. `watermark` is None until the run has seen it
    move.
    """

    records: int = 0
    skew: float | None = None
    keys: int = 0
    key_skew: float | None = None
    state_bytes: int = 0
    held_bytes: int = 0
    late: int = 0
    without_window: int = 0
    watermark: dt.datetime | None = None


class ModelMetrics(msgspec.Struct, frozen=True):
    """A version of a model after a micro-batch: its figures within the window of its policy.

    `agreement` is the share of records that a shadow scored like the serving version, `drift` the population
    stability index and `ks` the Kolmogorov-Smirnov statistic of its scores. `ms` is the time for 1,000 records,
    `p99_ms` that of 99 in 100 calls. All are None where nothing is known.
    """

    records: int = 0
    failures: int = 0
    slow: int = 0
    agreement: float | None = None
    drift: float | None = None
    ks: float | None = None
    ms: float | None = None
    p99_ms: float | None = None


class Totals(msgspec.Struct, frozen=True):
    """Totals over all committed micro-batches of a run since it started. They only grow.

    `batches_within` has, for each of `BOUNDS_S`, the number of micro-batches in which the job worked for at most that
    long. `latency` is by sink. What versions of models have scored, and how many scores failed, were slow or late, is
    by step, model and version, with slashes between them; `model_seconds` is the time it took, summed over tasks.
    """

    batches: int = 0
    batches_within: tuple[int, ...] = (0,) * len(BOUNDS_S)
    busy_seconds: float = 0.0
    phases: dict[str, float] = {}
    state_commit_seconds: float = 0.0
    records_in: dict[str, int] = {}
    records_out: dict[str, int] = {}
    step_records: dict[str, int] = {}
    dead_letters: int = 0
    late: dict[str, int] = {}
    without_window: dict[str, int] = {}
    commands: dict[str, int] = {}
    latency: dict[str, Latency] = {}
    model_records: dict[str, int] = {}
    model_failures: dict[str, int] = {}
    model_slow: dict[str, int] = {}
    model_late: dict[str, int] = {}
    model_seconds: dict[str, float] = {}


class BatchMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one committed micro-batch; in real time, of one interval.

    `batch_interval_ms` is the minimum time between the starts of two micro-batches, a setting of the run; 0 starts them
    as soon as there is data. `phases` are the seconds of the parts of `duration_s`, `idle_s` is how long the job waited
    before the micro-batch began, and `rest_s` how long it rested within it because nothing had arrived.
    `state_commit_s` is the time that tasks took to commit state, summed over tasks. `cores` is how many tasks Spark
    runs at a time. `commands` counts them by outcome: applied, degraded, rejected. `checkpoint_interval_ms` is how long
    an interval takes, a setting of the run; 0 runs micro-batches. `latency` is by sink, for sinks with output. `models`
    has the versions that score, by step, model and version, with slashes between them.
    """

    format: int = _FORMAT
    job: str
    job_id: str
    batch: int
    started: dt.datetime
    ended: dt.datetime
    duration_s: float
    phases: dict[str, float] = {}
    idle_s: float | None = None
    rest_s: float = 0.0
    state_commit_s: float = 0.0
    batch_interval_ms: int = 0
    checkpoint_interval_ms: int = 0
    parallelism: int
    cores: int = 0
    records_in: dict[str, int] = {}
    records_out: dict[str, int] = {}
    dead_letters: int = 0
    commands: dict[str, int] = {}
    lag: dict[str, Lag] = {}
    steps: dict[str, StepBatchMetrics] = {}
    memory: MemoryUse | None = None
    latency: dict[str, Latency] = {}
    models: dict[str, ModelMetrics] = {}
    totals: Totals

    @property
    def mode(self) -> Mode:
        """The mode in which the job ran."""
        return mode_of(self.checkpoint_interval_ms)

    @property
    def busy_s(self) -> float:
        """The time for which the job worked in the micro-batch, in seconds."""
        return max(0.0, self.duration_s - self.rest_s)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(BatchMetrics)


class BatchMetricsWriter:
    """A writer that appends metrics to a checkpoint, for the run that holds it.

    Each line is one write, so that it is stored completely or not at all. Losing lines in a power failure does no harm,
    since nothing depends on metrics.

    Args:
        checkpoint: the folder of the checkpoint.
        segment_bytes: the size at which a segment is full.
        max_bytes: the size of all segments above which the oldest ones are deleted.

    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        segment_bytes: int = _SEGMENT_BYTES,
        max_bytes: int = DEFAULT_METRICS_BYTES,
    ) -> None:
        self._folder: Final = checkpoint / METRICS_FOLDER
        self._segment_bytes: Final = max(1, min(segment_bytes, max_bytes // 4))
        self._max_bytes: Final = max_bytes
        self._file: int | None = None
        self._size = 0
        self._number = 0

    def append(self, metrics: BatchMetrics) -> None:
        """Append the metrics of one micro-batch. Raises OSError when they cannot be written."""
        line = _encoder.encode(metrics) + b"\n"
        if self._file is None:
            self._open()
        elif self._size + len(line) > self._segment_bytes:
            self._begin_segment()
        assert self._file is not None
        if os.write(self._file, line) != len(line):
            # The disk is full, and the written line is incomplete.
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        self._size += len(line)

    def close(self) -> None:
        """Close the segment; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        """Open the newest segment, and cut off the incomplete line that a killed run may have left."""
        self._folder.mkdir(exist_ok=True)
        names = _segments(self._folder)
        self._number = _number_of(names[-1]) if names else 1
        self._open_segment()
        assert self._file is not None
        self._size = whole_lines_bytes(self._file)
        os.ftruncate(self._file, self._size)
        if self._size >= self._segment_bytes:
            self._begin_segment()

    def _open_segment(self) -> None:
        path = self._folder / _name_of(self._number)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def _begin_segment(self) -> None:
        self.close()
        self._number += 1
        self._open_segment()
        self._size = 0
        sizes = {name: (self._folder / name).stat().st_size for name in _segments(self._folder)}
        total = sum(sizes.values())
        for name in list(sizes)[:-1]:
            if total + self._segment_bytes <= self._max_bytes:
                break
            (self._folder / name).unlink(missing_ok=True)
            total -= sizes[name]


class BatchMetricsTail:
    """A reader of the metrics that a job adds after this was created. Another process may run the job.

    With `from_start` the existing metrics come first.
    """

    def __init__(self, checkpoint: Path, *, from_start: bool = False) -> None:
        self._folder: Final = checkpoint / METRICS_FOLDER
        self._number = 0
        self._offset = 0
        if not from_start:
            self.read()

    def read(self) -> list[BatchMetrics]:
        """Return the metrics added since the last call, oldest first. Raises CheckpointError if unreadable."""
        found: list[BatchMetrics] = []
        for name in _segments(self._folder):
            number = _number_of(name)
            if number < self._number:
                continue
            offset = self._offset if number == self._number else 0
            lines = _lines(self._folder / name, offset)
            found += _decode(self._folder / name, lines)
            self._number, self._offset = number, offset + sum(len(line) + 1 for line in lines)
        return found


def newest_batch_metrics(checkpoint: Path) -> BatchMetrics | None:
    """Return the metrics of the newest micro-batch; None before the first. Raises CheckpointError if unreadable."""
    folder = checkpoint / METRICS_FOLDER
    for name in reversed(_segments(folder)):
        line = _last_line(folder / name)
        if line is not None:
            return _decode(folder / name, [line])[0]
    return None


def read_batch_metrics(
    checkpoint: Path, limit: int | None = None, *, after: int | None = None, since: dt.datetime | None = None
) -> list[BatchMetrics]:
    """Return the metrics of the newest micro-batches in a checkpoint, at most `limit`, oldest first.

    Only those after the micro-batch `after` and that ended after `since` count. Reads no more than it needs; the job
    may be running. Raises CheckpointError when the metrics cannot be read.
    """
    folder = checkpoint / METRICS_FOLDER
    found: list[BatchMetrics] = []
    for name in reversed(_segments(folder)):
        # Lines are decoded newest first, since most of a segment may not be needed.
        for line in reversed(_lines(folder / name, 0)):
            (metrics,) = _decode(folder / name, [line])
            is_before = (after is not None and metrics.batch <= after) or (
                since is not None and metrics.ended <= since
            )
            if is_before or len(found) == limit:
                return found[::-1]
            found.append(metrics)
    return found[::-1]


def _segments(folder: Path) -> list[str]:
    """Return the names of the segments, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  # only names are needed
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        name for name in names if name.endswith(".jsonl") and name.removesuffix(".jsonl").isdecimal()
    )


def _name_of(number: int) -> str:
    return f"{number:010}.jsonl"


def _number_of(name: str) -> int:
    return int(name.removesuffix(".jsonl"))


def _lines(path: Path, offset: int) -> list[bytes]:
    """Return the whole lines of a segment from an offset on, or nothing if the segment was deleted in the meantime."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as e:
        raise _read_error(path, e.strerror) from e
    return data.split(b"\n")[:-1]


def _last_line(path: Path) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        end = whole_lines_bytes(file)
        start = whole_lines_bytes(file, end - 1)
        return os.pread(file, end - start, start) if end else None
    finally:
        os.close(file)


def _decode(path: Path, lines: list[bytes]) -> list[BatchMetrics]:
    try:
        found = [_decoder.decode(line) for line in lines]
    except msgspec.MsgspecError as e:
        raise _read_error(path, e) from e
    newer = next((metrics.format for metrics in found if metrics.format != _FORMAT), None)
    if newer is not None:
        raise _read_error(path, f"their format is {newer}, and this penstock reads {_FORMAT}")
    return found


def _read_error(path: Path, why: Any) -> CheckpointError:
    return CheckpointError(
        f"The metrics in {path} cannot be read: {why}. Delete the file; the job does not need it."
    )
