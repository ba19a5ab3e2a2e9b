"""A running job: `penstock run` in its own process, which receives files and commands; shared by the examples."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

Record = dict[str, Any]

FINAL = ("APPLIED", "DEGRADED", "REJECTED")
PATIENCE_S = 120.0
PENSTOCK = (sys.executable, "-m", "penstock.cli")


def read(folder: Path) -> list[Record]:
    """Return all records in the JSON Lines files of a folder."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]


def run_bounded(job_file: Path, bindings: Mapping[str, str]) -> Record:
    """Run a job on all available input, to its end, and return the summary of the run."""
    finished = subprocess.run(
        [*PENSTOCK, "run", str(job_file), "--bounded", "-o", "json", *_places(bindings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"The job {job_file.name} failed. It said:\n{finished.stderr[-2000:]}")
    summary: Record = json.loads(finished.stdout.splitlines()[-1])
    return summary


def _places(bindings: Mapping[str, str]) -> list[str]:
    return [f"-D{name}={uri}" for name, uri in bindings.items()]


class RunningJob:
    """A job on folders: `folder/NAME` for each stream and sink, `folder/checkpoint` for the job itself.

    `bindings` are streams and sinks in other places; if the commands are among them, `publish` sends one there.
    Commands may have the job read below `allow_read` and write to `allow_write`; without a checkpoint the job starts
    from the state in `from_dump`.

    Use it as a context manager: at the end it stops the job between two micro-batches.
    """

    def __init__(
        self,
        job_file: Path,
        folder: Path,
        *,
        streams: Sequence[str] = (),
        sinks: Sequence[str] = (),
        bindings: Mapping[str, str] | None = None,
        publish: Callable[[bytes], None] | None = None,
        allow_write: Path | str | None = None,
        from_dump: Path | str | None = None,
        allow_read: Path | None = None,
    ) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)
        for name in streams:
            (folder / name).mkdir(parents=True)
        self.job_file = job_file
        self.bindings = {name: f"jsonl:{folder / name}" for name in (*streams, *sinks)} | dict(bindings or {})
        self._publish = publish
        self.allow_read = allow_read
        self.allow_write = allow_write
        self.from_dump = from_dump
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        arguments = ["run", str(self.job_file), "--checkpoint", str(self.checkpoint), *_places(self.bindings)]
        places = {
            "--allow-read": self.allow_read,
            "--allow-write": self.allow_write,
            "--from-dump": self.from_dump,
        }
        for option, place in places.items():
            arguments += [] if place is None else [option, str(place)]
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen([*PENSTOCK, *arguments], stdout=log, stderr=log)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def runs(self) -> bool:
        """Return whether the job is still running."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise RuntimeError, with the end of the job's log, if the job no longer runs."""
        if not self.runs():
            raise RuntimeError(self._last_words())

    def _last_words(self) -> str:
        return (
            f"The job in {self.folder} does not answer. It said:\n{(self.folder / 'log').read_text()[-2000:]}"
        )

    def hand_in(self, stream: str, file: Path) -> None:
        """Move a file into the folder of a stream, so that it appears complete."""
        where = self.checkpoint if stream == "commands" else self.folder
        target = where / stream / f"{next(self._numbers):06}.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)

    def play(self, files: Path, streams: Sequence[str], sink: str) -> list[Record]:
        """Hand in the files of a folder that are named after the streams, in turn, and return what the sink gets."""
        known = len(read(self.folder / sink))
        for stream in streams:
            if (files / f"{stream}.jsonl").exists():
                self.hand_in(stream, files / f"{stream}.jsonl")
                self.settle()
        return read(self.folder / sink)[known:]

    def send(self, *commands: Record) -> None:
        """Send commands."""
        if self._publish is not None:
            for command in commands:
                self._publish(json.dumps(command).encode())
            return
        file = self.folder / "commands.tmp"
        file.write_text("".join(json.dumps(command) + "\n" for command in commands))
        self.hand_in("commands", file)

    def versions(self) -> list[Record]:
        """Return the versions of the job's models."""
        told = subprocess.run(
            [*PENSTOCK, "models", "list", str(self.checkpoint), "-o", "json"],
            capture_output=True,
            check=True,
        )
        return [version for model in json.loads(told.stdout) for version in model["versions"]]

    def receipts(self) -> list[Record]:
        """Return the final receipts of the commands so far, except those of `settle`."""
        found = read(self.checkpoint / "receipts")
        return [one for one in found if one["status"] in FINAL and not one["id"].startswith("settle-")]

    def settle(self) -> None:
        """Wait until the job has processed everything that was handed in before.

        The micro-batch that answers the first trace may have looked for files before the last one was there. The
        micro-batch that answers the second trace started later.
        """
        for _ in range(2):
            # A job that starts from a dump knows the ids of the commands before it.
            command_id = f"settle-{self.folder.name}-{next(self._numbers)}"
            self.send({"id": command_id, "kind": "trace"})
            self._await_answer(command_id)

    def _await_answer(self, command_id: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(one["id"] == command_id for one in read(self.checkpoint / "receipts")):
            if not self.runs() or time.monotonic() > deadline:
                raise RuntimeError(self._last_words())
            time.sleep(0.05)
