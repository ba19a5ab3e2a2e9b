"""Command history: whether the last command of a long-lived job costs what the first did, and how a checkpoint grows.

Commands to single keys are sent one by one into a checkpoint's folder. Each is found, read, executed in every slot of a
step, and has its receipts before the next is sent. This uses the code of a real job, but without Spark: the state that
Spark stores for a slot is kept in memory. Files are on disk, or where the environment's TMPDIR says. Each of the last
commands has its own micro-batch. They are timed alternately with the first commands of a new job, so that other work
on the machine slows both; so are status queries. The commands before them share micro-batches, which only saves time.
"""

from __future__ import annotations

import datetime as dt
import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import penstock as ps
from benchmarks.command import option, run_command
from benchmarks.report import note, print_facts
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FilesBinding
from penstock.commands.command_catalog import CONTROL_FILE, command_catalog
from penstock.commands.command_sender import find_waiting, send_command
from penstock.commands.job_receipts import ReceiptWriter
from penstock.commands.receipt_history import find_history, find_newest_histories
from penstock.control.commands import Command, Target
from penstock.control.encoded_receipts import Batch, BatchReceipts, encode_receipts
from penstock.objects.allowed import AllowedPlaces
from penstock.runtime.command_reader import COMMAND_NODE, CommandReader
from penstock.runtime.level import Level
from penstock.runtime.packed_rows import (
    DEAD_LETTER_TYPE,
    DEAD_LETTERS,
    RECEIPT_COLUMNS,
    REPORTS,
    decode_receipt_columns,
    packed_batches,
    reports_of,
)
from penstock.runtime.plan import JobPlan
from penstock.runtime.slots import slot_keys
from penstock.runtime.writer import Forwarder, Writer, unpacked_rows
from penstock.sinks.discard import DiscardSink
from penstock.sources.fetched import FetchedFiles, KeptInFolder
from penstock.sources.file_source import FileLog, Keeping
from penstock.streams.graph import COMMANDS

__all__ = ["Sizes", "measure"]

_PARTITIONS: Final = 2
_TURN: Final = 100
_START: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Sizes:
    """The number of commands, of keys, and of commands at each end over which the median is taken."""

    commands: int = option(1_000_000, "how many commands are sent; default: %(default)s")
    keys: int = option(100, "to how many keys; default: %(default)s")
    timed: int = option(2_000, "how many are timed, the last and a new job's first; default: %(default)s")
    receipts_mb: int = option(256, "how many receipts the checkpoint keeps, in MiB; default: %(default)s")
    at_once: int = option(100, "how many a micro-batch has between the two ends; default: %(default)s")
    versions: int = option(0, "whether commands have versions, 0 or 1; default: %(default)s")


@dataclass
class _Reading:
    sensor: int


class _Limits(ps.ProcessFunction):
    """A step with a setting for each key."""

    limit = ps.ValueState(float)

    def process_record(self, record: _Reading, ctx: ps.Context) -> None:
        """Ignore the record."""


class _Entries:
    """The entries that Spark stores for a step in a slot, in memory; counts written bytes."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.written = 0

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name."""
        return self.stored.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""
        self.stored[name] = content
        self.written += len(content)

    def remove(self, name: str) -> None:
        """Remove a name."""
        del self.stored[name]


@dataclass
class _States:
    """The stored state of the only step in a slot."""

    entries_of_step: _Entries

    def entries(self, step_id: str) -> _Entries:  # noqa: ARG002  # there is only one step
        """Return the entries of a step."""
        return self.entries_of_step


class _Job:
    """The control side of a job, micro-batch by micro-batch."""

    def __init__(self, folder: Path, receipts_mb: int) -> None:
        job = ps.Job("limits", key_groups=4)
        job.data_stream("readings", schema=_Reading).key_by("sensor").process("limits", _Limits())
        self.folder = folder
        (folder / COMMANDS).mkdir(parents=True)
        self.plan = JobPlan(job.graph, job.key_groups, frozenset(), frozenset(), False, _PARTITIONS)
        found = parse_binding(COMMANDS, f"jsonl:{folder / COMMANDS}", "control")
        assert isinstance(found, FilesBinding)
        self.binding = found
        self.entry = command_catalog(job.name, self.plan.accepting, found)
        (folder / CONTROL_FILE).write_bytes(msgspec.json.encode(self.entry))
        self._log = FileLog(found, folder / "sources" / "commands.files", Keeping(owned=True))
        self._reader = CommandReader(
            self.plan,
            "json",
            1 << 20,
            FetchedFiles(KeptInFolder(str(folder / "fetched")), 1 << 20, AllowedPlaces()),
        )
        steps = [node.id for node in self.plan.levels()[0]]
        self._level = Level(self.plan, steps)
        sinks: Any = {DEAD_LETTERS: (DiscardSink(), DEAD_LETTER_TYPE, DEAD_LETTER_TYPE.schema)}
        self._forwarder = Forwarder(self.plan, steps)
        self._writer = Writer(self.plan, sinks, "life")
        self._receipts = ReceiptWriter(folder, "life", None, receipts_mb << 20)
        self._receipts.prepare()
        self._states = {slot: _States(_Entries()) for slot in slot_keys(_PARTITIONS)}
        self._end = 0
        self._batch = 0

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes the slots have stored in total."""
        return sum(states.entries_of_step.written for states in self._states.values())

    def run(self) -> int:
        """Run one micro-batch and return the number of finished commands."""
        start, self._end = self._end, self._log.latest(self._end, limited=True)
        splits = self._log.splits(start, self._end, _PARTITIONS)
        chunks = [chunk for split in splits for chunk in self._log.read([split], COMMAND_NODE.record_type)]
        rows = list(unpacked_rows(self._reader.batches(chunks)))
        now = _START + dt.timedelta(seconds=self._batch)
        reports: list[tuple[str, str, int, int, bytes]] = []
        for partition, (slot, states) in enumerate(self._states.items()):
            mine = [
                row._replace(body=bytes(row.body)) for row in rows if self.plan.slots[row.key_group] == slot
            ]
            made = list(self._level.run(mine, states, now, self.plan.slot_of[slot]))
            passed = self._forwarder.rows(packed_batches(made, self.plan.slots))
            for batch in self._writer.batches(passed, self._batch, partition, attempt=0):
                reports += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        columns = [
            some
            for kind, *_, body in reports
            if kind == RECEIPT_COLUMNS
            for some in decode_receipt_columns(body)
        ]
        slots = [reports_of(body) for kind, *_, body in reports if kind == REPORTS]
        together = encode_receipts((one for _, some, _ in slots for one in some), Batch(self._batch, now))
        told = BatchReceipts.of(columns, together)
        self._receipts.write(self._batch, told)
        # Spark says so when it plans the next micro-batch.
        self._log.forget(self._end)
        self._batch += 1
        return len(told)


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Send all commands. Raises RuntimeError if one has no receipt."""
    job = _Job(work / "checkpoint", sizes.receipts_mb)
    # First give every key a value, so that all commands do the same work.
    _send(job, sizes, range(sizes.keys), 1)
    max_bytes = 0
    last_begins = sizes.commands - sizes.timed
    ends = np.linspace(sizes.keys, last_begins, 21).astype(int).tolist()
    for start, end in itertools.pairwise(ends):
        each = _send(job, sizes, range(start, end), sizes.at_once)
        max_bytes = max(max_bytes, _size(job.folder))
        lately = statistics.median(each) * 1000
        note(f"{end:,}: {lately:.2f} ms, {max_bytes:,} bytes")
    young = _Job(work / "young", sizes.receipts_mb)
    _send(young, sizes, range(sizes.keys), 1)
    first, last = [], []
    # Alternately, so a busy machine slows both; many at a time, since a worker keeps the state of one job in memory.
    for begin in range(0, sizes.timed, _TURN):
        turn = range(begin, min(begin + _TURN, sizes.timed))
        first += _send(young, sizes, range(sizes.keys + turn.start, sizes.keys + turn.stop), 1)
        last += _send(job, sizes, range(last_begins + turn.start, last_begins + turn.stop), 1)
    newest = f"c{sizes.commands - 1}"
    if find_history(job.folder, newest) is None:
        raise RuntimeError(f"The newest command {newest} has no receipt at the end.")
    return {
        "commands": sizes.commands,
        "first_ms": round(statistics.median(first) * 1000, 3),
        "last_ms": round(statistics.median(last) * 1000, 3),
        "ratio": round(statistics.median(last) / statistics.median(first), 2),
        "folder_mb": round(max(max_bytes, _size(job.folder)) / 2**20, 1),
        "files": sum(1 for path in job.folder.rglob("*") if path.is_file()),
        "stored_per_command": round(job.stored_bytes / sizes.commands),
        "known_ms": _ask(job, newest),
        "unknown_ms": _ask(job, "nobody"),
        "history_ms": _timed(lambda: find_newest_histories(job.folder, lambda _: True, 20)),
    }


def _send(job: _Job, sizes: Sizes, numbers: range, at_once: int) -> list[float]:
    """Send commands in groups, one micro-batch each; return the seconds from sending to the receipts of each group."""
    taken = []
    for start in range(numbers.start, numbers.stop, at_once):
        some = range(start, min(start + at_once, numbers.stop))
        begin = time.perf_counter()
        for number in some:
            send_command(_command(number, sizes), job.binding)
        if job.run() != len(some):
            raise RuntimeError(f"Not all of the commands {some.start} to {some.stop - 1} have a receipt.")
        taken.append(time.perf_counter() - begin)
    return taken


def _command(number: int, sizes: Sizes) -> Command:
    return Command(
        id=f"c{number}",
        kind="set",
        target=Target("limits", key=number * 7919 % sizes.keys),
        version=number if sizes.versions else None,
        issued_by="bench",
        payload=msgspec.Raw(b'{"limit":%d.5}' % (number % 50)),
    )


def _ask(job: _Job, command_id: str) -> float:
    """Return how long a status query takes, as the server and `penstock control status` do it, in milliseconds."""

    def ask() -> None:
        if find_history(job.folder, command_id) is None:
            find_waiting(command_id, job.entry, job.folder)

    return _timed(ask)


def _timed(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return round((time.perf_counter() - begin) * 1000, 1)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    facts = {
        "one of the first commands of a new job, median": f"{result['first_ms']:.2f} ms",
        f"one of the last of {result['commands']:,}": f"{result['last_ms']:.2f} ms",
        "ratio": f"{result['ratio']:.2f}",
        "largest size of the checkpoint's folder": f"{result['folder_mb']:.0f} MiB",
        "files in it at the end": f"{result['files']:,}",
        "stored by the slots for each command": f"{result['stored_per_command']:,} bytes",
        "status of the newest command": f"{result['known_ms']:.1f} ms",
        "status of an unknown command": f"{result['unknown_ms']:.1f} ms",
        "the newest 20 commands": f"{result['history_ms']:.1f} ms",
    }
    print_facts("Commands, one by one", facts)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
