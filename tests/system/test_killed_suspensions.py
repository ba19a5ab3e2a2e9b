"""Kill -9 while a version of a model hangs or fills memory: no record is lost, doubled or scored by it.

The version works for most payments and hangs for some, so it serves until the first of these. Then the driver
or a worker is killed: during the hanging call, after the suspension is on disk, or while the query restarts.
Whoever is killed, the previous version scores the payments from that micro-batch on in the affected slots,
and in the end the hanging version is rolled back once.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hanging_model_job import HANGS, HUNG_AMOUNT
from job_process import JobProcess, await_true, kill
from reliability import Injected, noting
from rooms import read_folder, write_file
from safetensors.numpy import save

from penstock.commands.receipt_segments import NewReceipts
from penstock.models.library import MODELS, is_examined_content

JOB = Path(__file__).with_name("hanging_model_job.py")
CARDS = 12
Moment = Literal["the call hangs", "the suspension is on disk", "the query starts again"]
MOMENTS: tuple[Moment, ...] = ("the call hangs", "the suspension is on disk", "the query starts again")


class Payments:
    """The job in a folder, run by successive processes."""

    def __init__(self, folder: Path, *, in_real_time: bool) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        (folder / "payments").mkdir()
        self.paid: list[float] = []
        self.may_fail = 0
        self.arguments = [
            str(JOB),
            f"-Dpayments=jsonl:{folder / 'payments'}",
            f"-Dscores=jsonl:{folder / 'scores'}",
            f"--checkpoint={self.checkpoint}",
            "--parallelism=2",
            f"--allow-read={folder}",
            *(["--checkpoint-interval=1s"] if in_real_time else []),
        ]
        self.run = self.start()

    def start(self) -> JobProcess:
        return JobProcess(self.arguments, self.folder)

    def pay(self, amount: float) -> None:
        """Send one payment of each card."""
        rows = [{"number": len(self.paid) + card, "card": card, "amount": amount} for card in range(CARDS)]
        name = f"{len(self.paid):06}.jsonl"
        self.paid += [amount] * CARDS
        hidden = self.folder / "payments" / f".{name}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(hidden.with_name(name))

    def scores(self) -> list[dict[str, Any]]:
        return sorted(read_folder(self.folder / "scores"), key=lambda one: one["number"])

    def await_scores(self) -> None:
        self.await_true(lambda: len(self.scores()) >= len(self.paid))

    def await_true(self, condition: Callable[[], Any]) -> None:
        def is_done() -> bool:
            if not self.run.running:
                # Losing a worker fails the micro-batch and so the run; a supervisor restarts it.
                assert self.may_fail > 0, self.run.err[-3000:]
                self.may_fail -= 1
                self.run = self.start()
            return bool(condition())

        await_true(is_done, lambda: f"{Counter(map(str, self.statuses()))} {self.run.err[-3000:]}")

    def statuses(self) -> list[tuple[str, str, str]]:
        """Return kind, status and sender of each receipt."""
        if not self.checkpoint.exists():
            return []
        return [
            (one.kind, one.status, one.issued_by)
            for one in NewReceipts(self.checkpoint, from_start=True).read()
        ]

    def command(self, kind: str, version: str, **more: Any) -> None:
        """Send a command, and wait until it is applied."""
        before = Counter(self.statuses())
        name = f"{kind}-{version}"
        order = {
            "id": name,
            "kind": f"{kind}-model",
            "issued_by": "test",
            "target": {"step": "score"},
            "payload": {"model": "fraud", "version": version, **more},
        }
        write_file(self.checkpoint / "commands", f"{name}.jsonl", [order])
        applied = (f"{kind}-model", "APPLIED", "test")
        self.await_true(lambda: Counter(self.statuses())[applied] > before[applied])

    def bring_in(self, version: str, factor: float) -> None:
        """Load, validate and promote a version."""
        content = save({"factor": np.array([factor])})
        path = self.folder / f"{version}.safetensors"
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.command("load", version, uri=str(path), sha256=sha256, format="safetensors")
        self.await_true(lambda: is_examined_content(self.checkpoint / MODELS, sha256))
        self.command("validate", version)
        self.command("promote", version)

    def await_roll_backs(self, count: int) -> None:
        """Wait until this many versions were rolled back after a suspension."""
        applied = ("roll-back-model", "APPLIED", "policy")
        self.await_true(lambda: Counter(self.statuses())[applied] >= count)

    def suspensions(self, version: str) -> list[Path]:
        """Return the files that suspend a version."""
        return sorted((self.checkpoint / "models" / "suspended").rglob(f"{version}-*.json"))


def strike(
    job: Payments, version: str, moment: Moment, victim: str, draw: random.Random, injected: Injected
) -> None:
    """Wait until the version hangs, and kill."""
    if moment == "the call hangs":
        # The micro-batch of the payments is planned, and the timeout of 3 s has not passed.
        time.sleep(1.0 + draw.random())
    else:
        job.await_true(lambda: job.suspensions(version))
        if moment == "the query starts again":
            time.sleep(draw.random() * 3)
    injected.add(f"kill -9 of a {victim} when {moment}")
    if victim == "driver":
        # A supervisor kills the whole process group.
        for pid in [job.run.process.pid, *job.run.family()]:
            kill(pid, signal.SIGKILL)
        job.run.process.wait()
        job.run = job.start()
        return
    job.may_fail = 1
    for pid in job.run.workers():
        kill(pid, signal.SIGKILL)


def check_life(
    folder: Path,
    factor: float,
    strikes: list[tuple[Moment, str]],
    seed: int,
    injected: Injected,
    *,
    in_real_time: bool,
) -> None:
    draw = random.Random(seed)
    job = Payments(folder, in_real_time=in_real_time)
    try:
        job.await_true((job.checkpoint / "commands").exists)
        job.bring_in("good", 2.0)
        job.pay(1.0)
        job.await_scores()
        for number, (moment, victim) in enumerate(strikes):
            name = f"hangs-{number}"
            job.bring_in(name, factor)
            job.pay(1.0)
            job.await_scores()
            assert {one["version"] for one in job.scores()[-CARDS:]} == {name}
            job.pay(HUNG_AMOUNT)
            strike(job, name, moment, victim, draw, injected)
            job.pay(1.0)
            job.await_scores()
            job.await_roll_backs(number + 1)
            job.pay(1.0)
            job.await_scores()
            assert {one["version"] for one in job.scores()[-CARDS:]} == {"good"}
            job.may_fail = 0
        found = job.scores()
        assert [one["number"] for one in found] == list(range(len(job.paid)))
        for one, amount in zip(found, job.paid, strict=True):
            assert one["score"] == amount * (2.0 if one["version"] == "good" else factor)
            assert one["version"] == "good" or amount != HUNG_AMOUNT
        assert Counter(job.statuses())["roll-back-model", "APPLIED", "policy"] == len(strikes)
        undone = [
            status for kind, status, _ in job.statuses() if (kind, status) == ("promote-model", "DEGRADED")
        ]
        assert len(undone) == len(strikes)
    finally:
        job.run.__exit__()


@pytest.mark.chaos
@pytest.mark.parametrize("in_real_time", [False, True], ids=["batches", "real time"])
@pytest.mark.parametrize("factor", [HANGS, -HANGS], ids=["hangs", "fills the memory"])
def test_kills_while_a_version_is_suspended(factor: float, in_real_time: bool, tmp_path: Path) -> None:
    """The driver and workers are killed, at each moment of a suspension."""
    strikes = [(moment, victim) for moment in MOMENTS for victim in ("driver", "worker")]
    seed = 1 + 2 * in_real_time + (factor > 0)
    with noting("suspended models", "-k kills_while_a_version_is_suspended", str(seed)) as injected:
        check_life(tmp_path, factor, strikes, seed, injected, in_real_time=in_real_time)
