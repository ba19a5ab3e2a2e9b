"""The dump queue: write the dumps that commands request, from committed micro-batches, while the job runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.control.commands import DumpRequest
from penstock.control.encoded_receipts import EncodedReceipts
from penstock.objects.allowed import AllowedPlaces, PlaceRefusedError
from penstock.runtime.cuts import batch_numbers

__all__ = ["DumpQueue"]

_FOLDER: Final = "dumps"
_KIND: Final = "dump-state"


class _RequestedDump(msgspec.Struct, frozen=True):
    """A requested dump: its micro-batch, the command that requests it, and its destination."""

    batch: int
    command: str
    to: str
    format: str


class DumpQueue:
    """The queue of a job's dumps. A request is on disk before its micro-batch commits, so a later run can complete it.

    A separate process with low priority writes one dump at a time, to a place that is allowed. `on_note` gets a
    sentence about each.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        lineage: Lineage,
        allowed: AllowedPlaces,
        on_note: Callable[[str], None],
    ) -> None:
        self._checkpoint: Final = checkpoint
        self._first: Final = lineage.first_batch
        self._folder: Final = checkpoint.folder / _FOLDER
        self._allowed: Final = allowed
        self._on_note: Final = on_note
        self._running: tuple[Path, _RequestedDump, subprocess.Popen[str]] | None = None

    def enqueue(self, batch: int, commands: Iterable[EncodedReceipts]) -> None:
        """Queue the dumps that the commands of a micro-batch request. Called again with the same ones after a crash."""
        for command in commands:
            if _KIND.encode() not in command.lines:
                continue
            receipt = command.receipts[-1]
            if receipt.kind != _KIND or receipt.status != "APPLIED":
                continue
            request = _request(receipt.details)
            wanted = _RequestedDump(batch, receipt.id, request.place(batch), request.format)
            name = f"{batch:010}-{command.place.partition}-{command.place.offset}".replace("/", "_")
            write_atomically(self._folder / f"{name}.json", msgspec.json.encode(wanted))

    def step(self) -> bool:
        """Start a dump or complete the running one, if possible; return whether any are left."""
        if self._running is not None:
            path, wanted, process = self._running
            if process.poll() is None:
                return True
            self._running = None
            self._end(path, wanted, process)
        waiting = sorted(self._folder.glob("*.json")) if self._folder.exists() else []
        for path in waiting:
            wanted = msgspec.json.decode(path.read_bytes(), type=_RequestedDump)
            spark_batch = wanted.batch - self._first
            if (
                spark_batch < 0
                or (self._checkpoint.spark_folder / "commits" / str(spark_batch)).exists()
                or spark_batch < self._oldest()
            ):
                try:
                    self._running = path, wanted, self._start(wanted)
                except PlaceRefusedError as e:
                    self._record_failure(path, wanted, f"It was refused: {e}.")
                return True
        return bool(waiting)

    def finish(self) -> None:
        """Wait for the dumps of committed micro-batches."""
        while self.step() and self._running is not None:
            self._running[2].wait()

    def abandon(self) -> None:
        """Abort the running dump. It leaves no dump behind, and the next run of the job starts it again."""
        if self._running is not None:
            process = self._running[2]
            process.kill()
            process.communicate()
            self._running = None

    def _oldest(self) -> int:
        return min(batch_numbers(self._checkpoint.spark_folder / "commits"), default=0)

    def _start(self, wanted: _RequestedDump) -> subprocess.Popen[str]:
        # Checked again here, since a link can lead to another place than the text that was checked before.
        to = self._allowed.to_write(wanted.to)
        arguments = [str(self._checkpoint.folder), "--to", to, "--format", wanted.format]
        command = [sys.executable, "-m", "penstock.cli", "state", "dump", *arguments]
        return subprocess.Popen(
            [*command, "--batch", str(wanted.batch), "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _end(self, path: Path, wanted: _RequestedDump, process: subprocess.Popen[str]) -> None:
        output, errors = process.communicate()
        if process.returncode != 0:
            self._record_failure(path, wanted, " ".join(errors.split())[-1000:])
            return
        made = msgspec.json.decode(output.strip().splitlines()[-1])
        self._on_note(f"The dump of micro-batch {wanted.batch} is in {wanted.to}: {made['rows']:,} rows.")
        _settle(path, msgspec.structs.asdict(wanted) | made)

    def _record_failure(self, path: Path, wanted: _RequestedDump, why: str) -> None:
        self._on_note(f"The dump of micro-batch {wanted.batch} to {wanted.to} failed. {why}")
        _settle(path, {**msgspec.structs.asdict(wanted), "error": why})


def _settle(path: Path, outcome: dict[str, Any]) -> None:
    """Record the outcome of a dump, and remove it from the queue."""
    write_atomically(path.with_suffix(".done"), msgspec.json.encode(outcome))
    path.unlink()


def _request(details: str) -> DumpRequest:
    """Decode the request from the details of a receipt, where the first slot of each step repeats it."""
    found = msgspec.json.decode(details)
    return msgspec.convert(found[0] if isinstance(found, list) else found, DumpRequest)
