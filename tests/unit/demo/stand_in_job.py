"""A substitute for the job without Spark: reads folders, writes commands and cuts; can be given faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.demo.example import load_fold
from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS, Feed
from penstock.jobs.runner import Progress, RunSummary
from penstock.runtime.cuts import write_stream_order

Record = dict[str, Any]
# A fault: takes the number of a micro-batch and its commands, returns the commands to write.
Fault = Callable[[int, list[Record]], list[Record]]


def folder_of(feed: Feed, stream: str) -> Path:
    return Path(feed.bindings[stream].removeprefix("jsonl:").replace("%3F", "?").replace("%25", "%"))


class StandInJob:
    """Runs one micro-batch per `step`; controls before data. `late` settings take effect a batch too late."""

    def __init__(
        self, feed: Feed, checkpoint: str, fault: Fault | None = None, *, late: bool = False
    ) -> None:
        self.feed = feed
        self.checkpoint = Path(checkpoint)
        self.fault = fault
        self.late = late
        self.fold = load_fold()
        self.waiting: list[Record] = []
        self.taken: dict[str, list[str]] = {SETTINGS: [], READINGS: []}
        self.counts = {SETTINGS: 0, READINGS: 0}
        self.written = 0
        self.batch = -1
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "sources").mkdir()
        write_stream_order(self.checkpoint, [SETTINGS, READINGS])

    def step(self) -> bool:
        """Process the new files; return whether there were any."""
        new = {stream: self.new_files(stream) for stream in self.taken}
        if not any(new.values()):
            return False
        self.batch += 1
        read = {stream: self.read(stream, names) for stream, names in new.items()}
        settings, self.waiting = (self.waiting, read[SETTINGS]) if self.late else (read[SETTINGS], [])
        for setting in settings:
            self.fold.take_setting(setting)
        commands = [c for reading in read[READINGS] if (c := self.fold.judge(reading)) is not None]
        if self.fault is not None:
            commands = self.fault(self.batch, commands)
        self.write(commands)
        return True

    def new_files(self, stream: str) -> list[str]:
        names = sorted(path.name for path in folder_of(self.feed, stream).glob("*.jsonl"))
        return [name for name in names if name not in self.taken[stream]]

    def read(self, stream: str, names: list[str]) -> list[Record]:
        folder = folder_of(self.feed, stream)
        with (self.checkpoint / "sources" / f"{stream}.files").open("a") as log:
            for name in names:
                log.write(
                    json.dumps({"directory": str(folder), "name": name, "size": 0, "mtime_ns": 0}) + "\n"
                )
        self.taken[stream] += names
        found = [json.loads(line) for name in names for line in (folder / name).read_text().splitlines()]
        self.counts[stream] += len(found)
        return found

    def write(self, commands: list[Record]) -> None:
        ends = [json.dumps({"position": len(self.taken[stream])}) for stream in (SETTINGS, READINGS)]
        (self.checkpoint / "offsets" / str(self.batch)).write_text("\n".join(["v1", "{}", *ends]))
        if commands:
            lines = "".join(json.dumps(command) + "\n" for command in commands)
            hidden = folder_of(self.feed, COMMANDS) / ".part"
            hidden.write_text(lines)
            hidden.rename(hidden.with_name(f"part-0001-{self.batch:010}.jsonl"))
        self.written += len(commands)


class StandInThread:
    """The substitute with the interface of the demo's job thread."""

    fault: Fault | None = None
    late = False
    error: Exception | None = None

    def __init__(self, feed: Feed, checkpoint: str) -> None:
        self.job = StandInJob(feed, checkpoint, self.fault, late=self.late)
        self.progress: Progress | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join()

    def work(self) -> None:
        while not self.stop.is_set():
            if self.job.step():
                counts = dict(self.job.counts)
                written = {COMMANDS: self.job.written}
                self.progress = Progress(batch_id=self.job.batch, records_in=counts, records_out=written)
            time.sleep(0.02)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> RunSummary:
        self.__exit__()
        job = self.job
        counts, written = dict(job.counts), {COMMANDS: job.written}
        return RunSummary("stand-in", "stopped", job.batch + 1, counts, written, 0, 0, {"thermostat": 1}, "")
