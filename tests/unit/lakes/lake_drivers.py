"""Drivers killed or suspended at any instruction: `lake_drivers.py LAKE FOLDER SEED KILLS STOPS`.

A driver is a fork of this process, which itself only imports. It commits one micro-batch after another, and
notes each in a file, as a checkpoint does; a driver stops when a later one has taken over.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow
import pyiceberg.transforms  # noqa: F401  # so that no fork has to load them
from lake_tables import lake_sink

from penstock.base.durable import write_atomically
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

NUMBER = record_type("number BIGINT, part STRING")
TASKS = 2
RECORDS = 10


class Place:
    """The table, and the drivers' shared notes."""

    def __init__(self, lake: str, folder: Path) -> None:
        self._lake = lake
        self._folder = folder
        self._note = folder / "committed"
        self._owner = folder / "owner"

    @property
    def committed(self) -> int:
        return int(self._note.read_text()) if self._note.exists() else -1

    @property
    def owner(self) -> int:
        return int(self._owner.read_text())

    def drive(self, number: int) -> None:
        write_atomically(self._owner, str(number).encode())
        sink = lake_sink(self._lake, self._folder, NUMBER, "part")
        assert sink.newest("line", "") in (self.committed, self.committed + 1)
        sink.prepare("line", "")
        while True:
            batch_id = self.committed + 1
            messages = []
            for partition in range(TASKS):
                task = sink.task(TaskContext(batch_id, partition, 0, "line"), NUMBER)
                first = (batch_id * TASKS + partition) * RECORDS
                rows = [{"number": n, "part": f"{n % 2}/%"} for n in range(first, first + RECORDS)]
                task.write(pa.RecordBatch.from_pylist(rows, NUMBER.schema), None)
                messages.append(task.finish())
            if self.owner != number:
                return
            sink.commit(batch_id, messages)
            if self.owner != number:
                return
            write_atomically(self._note, str(batch_id).encode())

    def started(self, number: int) -> int:
        """Start a driver, and return its process once it owns the table."""
        child = os.fork()
        if child == 0:
            try:
                self.drive(number)
            except BaseException as e:
                print(f"driver {number}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        while not self._owner.exists() or self.owner != number:
            time.sleep(0.001)
        return child

    def await_progress(self) -> None:
        before = self.committed
        while self.committed <= before:
            time.sleep(0.001)


def main(lake: str, folder: Path, seed: int, kills: int, stops: int) -> None:
    chance = random.Random(seed)
    place = Place(lake, folder)
    faults = ["kill"] * kills + ["stop"] * stops
    chance.shuffle(faults)
    number = 0
    for fault in faults:
        number += 1
        child = place.started(number)
        place.await_progress()
        time.sleep(chance.uniform(0, 0.1))
        if fault == "stop":
            os.kill(child, signal.SIGSTOP)
            number += 1
            other = place.started(number)
            place.await_progress()
            os.kill(child, signal.SIGCONT)
            # It finds that it has lost ownership, perhaps after a late commit.
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            place.await_progress()
            child = other
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    last = place.started(number + 1)
    place.await_progress()
    os.kill(last, signal.SIGKILL)
    os.waitpid(last, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
