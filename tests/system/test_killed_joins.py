"""Joins under attack: a SQL job is killed, stopped and rescaled, and compared with joins of plain rows.

tests/unit/joins has crashes, restarts and rescales of each kind of join in one process, with random
schedules.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from job_process import JobProcess, await_true, cli, kill, run_arguments
from reliability import Injected, noting
from rooms import read_folder, write_file
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.settings import RunSettings

JOB: Final = Path(__file__).with_name("joined_orders.sql")
STREAMS: Final = ("orders", "payments")
SINKS: Final = ("near", "newest", "windows")
LATENESS_MS: Final = 5_000
SEED: Final = 17

Record = dict[str, Any]


class Shop:
    """An endless supply of orders and payments, none late. The expected joins are computed from all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = random.Random(SEED)
        self._files = 0
        self.sent: dict[str, list[Record]] = {name: [] for name in STREAMS}
        for name in (*STREAMS, *SINKS):
            (folder / name).mkdir()

    def send(self) -> None:
        """Send a file to each stream; its records are not in event-time order."""
        for stream in STREAMS:
            begun_ms = self._files * 6_000
            records: list[Record] = []
            for _ in range(30):
                at_ms = begun_ms + self._random.randrange(6_000) - self._random.randrange(LATENESS_MS - 1)
                number = len(self.sent[stream]) + len(records)
                records.append({"id": number, "item": self._random.choice("abcdefgh"), "at": max(at_ms, 0)})
            self._write(stream, records)
        self._files += 1

    def end(self) -> None:
        """Send a record to each stream that moves the watermark past all others."""
        for stream in STREAMS:
            far = {"id": len(self.sent[stream]), "item": "z", "at": self._files * 6_000 + 10_000_000}
            self._write(stream, [far])

    def _write(self, stream: str, records: list[Record]) -> None:
        self.sent[stream] += records
        found = [{**one, "paid": one["id"]} if stream == "payments" else one for one in records]
        write_file(self._folder / stream, f"{self._files:06}.jsonl", found)

    def expected(self) -> dict[str, Counter[tuple[int | None, int | None]]]:
        """Return the expected rows of each sink."""
        found: dict[str, Counter[tuple[int | None, int | None]]] = {name: Counter() for name in SINKS}
        joined = set()
        for order in self.sent["orders"]:
            same = [one for one in self.sent["payments"] if one["item"] == order["item"]]
            near = [one["id"] for one in same if -2_000 <= one["at"] - order["at"] <= 20_000]
            found["near"].update((order["id"], one) for one in near or [None])
            before = [(one["at"], one["id"]) for one in same if one["at"] <= order["at"]]
            found["newest"][order["id"], max(before)[1] if before else None] += 1
            within = [one["id"] for one in same if one["at"] // 10_000 == order["at"] // 10_000]
            found["windows"].update((order["id"], one) for one in within or [None])
            joined.update(within)
        found["windows"].update((None, one["id"]) for one in self.sent["payments"] if one["id"] not in joined)
        return found


class Victim:
    """The job, restarted again and again on one checkpoint."""

    def __init__(self, folder: Path, shop: Shop) -> None:
        self._folder = folder
        self._shop = shop
        self._random = random.Random(SEED)
        self._tasks = 2
        self.checkpoint = folder / "checkpoint"
        places = {name: f"jsonl:{folder / name}?max_files_per_batch=1" for name in STREAMS}
        places |= {name: f"jsonl:{folder / name}" for name in SINKS}
        self._settings = RunSettings(bindings=places, checkpoint=str(self.checkpoint))

    @contextmanager
    def running(self) -> Iterator[JobProcess]:
        """Start a run, and wait until it has committed a micro-batch."""
        with JobProcess(run_arguments(JOB, self._settings), self._folder) as job:
            self._await_batch(job)
            time.sleep(self._random.uniform(0, 2))
            yield job

    def _await_batch(self, job: JobProcess) -> None:
        before = self._newest()
        self._shop.send()
        await_true(lambda: self._newest() > before or not job.running, lambda: f"{job.out} {job.err}")
        assert job.running, job.err
        self._shop.send()
        self._shop.send()

    def _newest(self) -> int:
        commits = self.checkpoint / "commits"
        return max((int(one.name) for one in commits.glob("[0-9]*") if one.name.isdigit()), default=-1)

    def kill_driver(self) -> None:
        with self.running() as job:
            job.signal(signal.SIGKILL)
            job.wait()

    def kill_worker(self) -> None:
        with self.running() as job:
            workers: list[int] = []
            # One that is found may have ended when they are looked for again.
            await_true(
                lambda: workers.extend(job.workers()) or workers or not job.running,
                lambda: f"no worker: {job.family()}",
            )
            kill(self._random.choice(sorted(workers)), signal.SIGKILL)
            time.sleep(self._random.uniform(0, 4))
            # The run continues, or ends with an error; a killed driver is different.
            job.signal(signal.SIGKILL)
            job.wait()

    def rescale(self) -> None:
        with self.running() as job:
            self._tasks = 5 - self._tasks
            rescaled = CliRunner().invoke(
                app, ["rescale", str(self.checkpoint), f"--parallelism={self._tasks}"]
            )
            assert rescaled.exit_code == 0, f"{rescaled.output} {job.err}"
            self._await_batch(job)
            job.signal(signal.SIGTERM)
            assert job.wait().code == 0

    def finish(self) -> None:
        """Run to the end of the input."""
        result = cli(*run_arguments(JOB, self._settings), "--bounded", "-o", "json", folder=self._folder)
        assert result.code == 0, result.err
        assert result.summary["dead_letters"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_joins_survive_kills_and_rescales(tmp_path: Path) -> None:
    """Each row of each join is written once, and equals that of the join of plain rows."""
    shop = Shop(tmp_path)
    victim = Victim(tmp_path, shop)
    actions = {
        "kill -9 of a driver": victim.kill_driver,
        "kill -9 of a worker, then of its driver": victim.kill_worker,
        "a rescale while records come": victim.rescale,
    }
    with noting("joins", "-k joins_survive", str(SEED)) as injected:
        fire(actions, injected, rounds=4)
        shop.end()
        victim.finish()
        for name, rows in shop.expected().items():
            far = {len(shop.sent[stream]) - 1 for stream in STREAMS}
            found = Counter((one["id"], one["payment"]) for one in read_folder(tmp_path / name))
            # The last records end event time for all others, and may remain in their own last window.
            assert {row: n for row, n in (found - rows).items() if not far & {*row}} == {}, name
            assert {row: n for row, n in (rows - found).items() if not far & {*row}} == {}, name


def fire(actions: dict[str, Any], injected: Injected, rounds: int) -> None:
    """Do each of some actions several times, in random order."""
    wanted = list(actions) * rounds
    random.Random(SEED).shuffle(wanted)
    for name in wanted:
        injected.add(name)
        actions[name]()
