"""Turns of penstock and a plain client, which write and read the same records: what a turn takes, and the ratios."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from benchmarks.report import note
from penstock.bindings.parse import parse_binding
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.receiver import Receiver

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
_BLOCK: Final = 10_000
GROUP: Final = 1000


class Cost(NamedTuple):
    """What a turn took: by the clock, and of this process's processor time."""

    seconds: float
    cpu_s: float


def blocks_of(records: int) -> list[pa.RecordBatch]:
    """Return records of distinct sensors, in blocks."""
    columns = [
        pa.array(range(records)),
        pa.array([20 + number % 7 / 10 for number in range(records)]),
        pa.array([f"room {number % 100}" for number in range(records)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, records, _BLOCK)]


def bodies_of(blocks: Sequence[pa.RecordBatch]) -> list[bytes]:
    """Return the records as a plain client would encode them."""
    return [json.dumps(row).encode() for block in blocks for row in block.to_pylist()]


def timed(work: Callable[[], object]) -> Cost:
    """Do something and return what it took."""
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - begun_s, time.process_time() - cpu_s)


def write(uri: str, blocks: Sequence[pa.RecordBatch]) -> Cost:
    """Write all blocks with a sink of penstock, in one task."""
    sink = open_sink(parse_binding("records", uri, "sink"), READING, None)
    sink.prepare("bench", "")

    def work() -> None:
        task = sink.task(TaskContext(1, 0, 0, "bench"), READING)
        for block in blocks:
            task.write(block, None)
        task.finish()

    return timed(work)


def receive(open_receiver: Callable[[JournalWriter], Receiver[Any]], records: int) -> Cost:
    """Receive all records into a journal on disk; by the clock until the last is there.

    A bounded receiver then waits for a moment, in case that more come.
    """
    with tempfile.TemporaryDirectory() as folder:
        place, written_s = Path(folder), [0.0]

        def note_time() -> None:
            written_s[0] = time.perf_counter()

        def work() -> None:
            with open_receiver(JournalWriter(place, keep=note_time)) as receiver:
                receiver.wait_for_end(threading.Event())

        begun_s = time.perf_counter()
        cost = timed(work)
        log = JournalLog(place)
        splits = log.splits(0, log.latest(0, limited=False), 1)
        check(sum(len(chunk.offsets) for chunk in log.read(splits, READING)), records)
    return Cost(written_s[0] - begun_s, cost.cpu_s)


def check(found: int, expected: int) -> None:
    """End the benchmark if records are missing."""
    if found != expected:
        raise SystemExit(f"There are {found} of {expected} records.")


class SyncedFile:
    """What a plain client that must not lose anything writes to, in groups."""

    def __init__(self) -> None:
        self._file: Final = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._group: list[bytes] = []
        self.count = 0

    def add(self, body: bytes) -> bool:
        """Keep a message, and tell whether it and all before it are on disk."""
        self._group.append(body)
        self.count += 1
        if len(self._group) < GROUP:
            return False
        self.sync()
        return True

    def sync(self) -> None:
        """Put the group on disk."""
        self._file.write(b"\n".join(self._group) + b"\n")
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self._group.clear()

    def close(self) -> None:
        """Forget the file."""
        self._file.close()


def measure(
    name: str, client: str, turns: Mapping[str, Callable[[Sequence[pa.RecordBatch]], Cost]], options: Any
) -> dict[str, Any]:
    """Return records per second of both, and the medians of the ratios of a round."""
    blocks = blocks_of(options.records)
    runs: list[dict[str, Cost]] = []
    for number in range(options.rounds):
        runs.append({who: turn(blocks) for who, turn in turns.items()})
        rates = ", ".join(
            f"{who} {options.records / cost.seconds:,.0f}/s, {cost.cpu_s:.2f} s of processor time"
            for who, cost in runs[-1].items()
        )
        note(f"{name}: round {number + 1} of {options.rounds}: {rates}")
    return {
        "what": name,
        "client": client,
        "records": options.records,
        "records_per_s": {
            who: statistics.median(options.records / run[who].seconds for run in runs) for who in turns
        },
        "ratio": statistics.median(run["client"].seconds / run["penstock"].seconds for run in runs),
        "cpu_ratio": statistics.median(run["client"].cpu_s / run["penstock"].cpu_s for run in runs),
    }
