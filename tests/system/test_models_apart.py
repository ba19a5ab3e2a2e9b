"""Models on a standalone cluster whose machines share only a store: versions change while everything is
killed.

Workers have no folder of the checkpoint, and each start of the job has an empty disk. Versions are loaded,
examined, validated and promoted while the S3 server, an executor, a worker or the driver with its machine's
disk is killed; one version hangs. Each payment is scored once, by the serving version.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import obstore
import pytest
from hanging_model_job import HANGS, HUNG_AMOUNT
from job_process import JobProcess, await_true
from machines_apart import PATIENCE_S, Apart, Site, open_site
from reliability import Injected, noting
from rooms import write_file
from s3_server import S3Server
from safetensors.numpy import save
from sink_kills import kill_process

import penstock as ps
from penstock.commands.receipt_segments import NewReceipts
from penstock.errors import CheckpointError, ExternalSystemError
from penstock.jobs.settings import RunSettings
from penstock.models.library import MODELS, is_examined_content

JOB: Final = Path(__file__).with_name("hanging_model_job.py")
CARDS: Final = 12
WORKING: Final = ("S3 server", "executor", "worker of Spark")
ORDERS: Final = ("load", "validate", "promote")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site"), "s3") as opened:
        yield opened


class Scored:
    """The job on the cluster, run by successive processes, with payments and scores on the store."""

    def __init__(self, apart: Apart, *more: str) -> None:
        assert isinstance(apart.server, S3Server)
        self.apart = apart
        self.server: S3Server = apart.server
        self.home = f"s3://checkpoints/{time.time_ns()}"
        self.prefix = f"scored/{time.time_ns()}"
        self.server.put("models", "there", b"")
        self.paid: list[float] = []
        self.runs = 0
        self.in_real_time = bool(more)
        self._settings = RunSettings(
            bindings={
                "payments": f"s3://outputs/in/{self.prefix}?format=jsonl",
                "scores": f"s3://outputs/{self.prefix}?format=jsonl",
            },
            checkpoint=self.home,
            parallelism=2,
        )
        self._more = ("--allow-read=s3://models", *more)
        self.job = self._start()
        self._read: dict[str, list[dict[str, Any]]] = {}

    def _start(self) -> JobProcess:
        self.runs += 1
        return self.apart.job(*self._more, program=JOB, settings=self._settings)

    def await_true(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition; a run that has ended is restarted on an empty disk."""

        def is_done() -> bool:
            if not self.job.running:
                self.job.__exit__()
                self.job = self._start()
            time.sleep(0.5)
            return bool(condition())

        await_true(is_done, lambda: f"{what}: {self.job.err[-3000:]}", PATIENCE_S)

    @property
    def folder(self) -> Path | None:
        """Return the folder in which the driver works, once it has started."""
        found = list(
            Path(f"/proc/{self.job.process.pid}/root{self.apart.disk}").glob("penstock-checkpoint-*")
        )
        return found[0] if found and (found[0] / "control.json").exists() else None

    def receipts(self) -> list[Any]:
        """Return all receipts on the driver's disk; none without a driver."""
        try:
            return list(NewReceipts(self.folder or Path("none"), from_start=True).read())
        except (OSError, CheckpointError):
            return []

    def await_roll_backs(self, count: int) -> None:
        """Wait until this many versions were rolled back after a suspension."""
        kind, by = "roll-back-model", "policy"
        self.await_true(
            lambda: (
                sum((one.kind, one.issued_by, one.status) == (kind, by, "APPLIED") for one in self.receipts())
                >= count
            ),
            "a rollback",
        )

    def command(self, kind: str, version: str, meanwhile: Callable[[], None], **more: Any) -> None:
        """Send a command until it has a receipt, again if a lost disk had it."""
        order = {
            "id": f"{kind}-{version}",
            "kind": f"{kind}-model",
            "issued_by": "test",
            "target": {"step": "score"},
            "payload": {"model": "fraud", "version": version, **more},
        }
        sent_to = 0

        def is_applied() -> bool:
            nonlocal sent_to
            if self.folder is None:
                return False
            if sent_to != self.job.process.pid:
                write_file(self.folder / "commands", f"{order['id']}-{self.runs}.jsonl", [order])
                if not sent_to:
                    meanwhile()
                sent_to = self.job.process.pid
            found = [one for one in self.receipts() if one.id == order["id"]]
            assert all(one.status != "REJECTED" for one in found), found
            return bool(found)

        self.await_true(is_applied, f"{order}")

    def bring_in(self, version: str, factor: float, kills: dict[str, Callable[[], None]]) -> None:
        """Load, validate and promote a version; some of the commands are followed by a kill."""
        content = save({"factor": np.array([factor])})
        sha256 = hashlib.sha256(content).hexdigest()
        uri = self.server.put("models", f"{version}.safetensors", content)
        self.command(
            "load", version, kills.get("load", _nothing), uri=uri, sha256=sha256, format="safetensors"
        )
        self.await_true(
            lambda: self.folder is not None and is_examined_content(self.folder / MODELS, sha256),
            f"the examination of {version}",
        )
        # From now on it comes from the checkpoint.
        obstore.delete(self.server._store("models"), f"{version}.safetensors")
        for order in ("validate", "promote"):
            self.command(order, version, kills.get(order, _nothing))

    def pay(self, amount: float) -> None:
        """Send one payment of each card."""
        rows = [{"number": len(self.paid) + card, "card": card, "amount": amount} for card in range(CARDS)]
        name = f"in/{self.prefix}/{len(self.paid):06}.jsonl"
        self.server.put("outputs", name, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self.paid += [amount] * CARDS

    def scores(self) -> list[dict[str, Any]]:
        for uri in ps.committed_objects(f"s3://outputs/{self.prefix}"):
            if uri not in self._read:
                self._read[uri] = [json.loads(line) for line in self.server.get(uri).splitlines()]
        return sorted((row for rows in self._read.values() for row in rows), key=lambda one: one["number"])

    def await_scores(self) -> None:
        def are_there() -> bool:
            try:
                return len(self.scores()) >= len(self.paid)
            except ExternalSystemError:
                # A server that was killed may be slow to answer on a busy machine.
                return False

        self.await_true(are_there, "scores")

    def kill(self, victim: str, chance: random.Random, injected: Injected) -> None:
        time.sleep(chance.uniform(0, 3))
        lost = victim if victim in WORKING else f"{victim}, with its machine's disk"
        injected.add(f"{lost} (in real time)" if self.in_real_time else lost)
        if victim == "S3 server":
            self.server.kill()
            time.sleep(chance.uniform(0, 3))
            self.server.start()
        elif victim == "driver":
            kill_process(victim, self.job)
        else:
            self.apart.kill_one(victim, chance)

    def stop(self) -> None:
        self.job.signal(signal.SIGTERM)
        assert self.job.wait(PATIENCE_S).code == 0, self.job.err


def _nothing() -> None:
    """Kill nobody."""


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("more", [(), ("--checkpoint-interval=1s",)], ids=["micro-batches", "real time"])
def test_kills_while_versions_come_in_on_machines_that_share_only_a_store(
    tmp_path: Path, site: Site, more: tuple[str, ...]
) -> None:
    """The server, an executor, a worker and the driver are killed, each while a version is loaded, validated
    and promoted.
    """
    seed = 36
    chance = random.Random(seed)
    factors = {"good": 2.0}
    scored = Scored(Apart(tmp_path, site), *more)
    try:
        with noting("models on machines apart", "-k kills_while_versions_come_in", str(seed)) as injected:
            scored.bring_in("good", 2.0, {})
            scored.pay(1.0)
            scored.await_scores()
            for number, victim in enumerate((*WORKING, "driver")):
                version = f"v{number}"
                factors[version] = 3.0 + number
                kills = {
                    order: lambda victim=victim: scored.kill(victim, chance, injected)  # type: ignore[misc]
                    for order in ORDERS
                }
                scored.bring_in(version, factors[version], kills)
                scored.pay(1.0)
                scored.await_scores()
                assert {one["version"] for one in scored.scores()[-CARDS:]} == {version}
            # A version hangs in the tasks; whoever is killed then, the previous version scores.
            for number, victim in enumerate(("executor", "driver")):
                hangs = f"hangs-{victim}"
                factors[hangs] = HANGS
                scored.bring_in(hangs, HANGS, {})
                scored.pay(HUNG_AMOUNT)
                scored.kill(victim, chance, injected)
                scored.await_scores()
                assert {one["version"] for one in scored.scores()[-CARDS:]} == {"v3"}
                scored.await_roll_backs(number + 1)
            found = scored.scores()
            assert [one["number"] for one in found] == list(range(len(scored.paid)))
            for one, amount in zip(found, scored.paid, strict=True):
                assert one["score"] == amount * factors[one["version"]]
            scored.stop()
    finally:
        scored.job.__exit__()
    # Four runs were lost with a disk; more may have ended for another reason, such as a busy machine.
    assert 5 <= scored.runs <= 10
