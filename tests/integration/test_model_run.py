"""Models on Spark: versions are loaded into a running job without stopping it, and are part of savepoints."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integration_support import read_lines, write_lines
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from safetensors.numpy import save

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.commands.job_receipts import plain
from penstock.commands.receipt_history import find_history
from penstock.commands.receipt_segments import NewReceipts
from penstock.jobs.events import read_events
from penstock.jobs.settings import RunSettings
from penstock.savepoints.snapshot_capture import Capture, capture

JOB = """
import time
from typing import Any

import numpy as np
import penstock as ps


class Linear:
    def __init__(self, weights: dict[str, Any], metadata: dict[str, str]) -> None:
        self.factor = weights["factor"][0]

    def predict(self, columns: dict[str, Any]) -> Any:
        # Payments of this amount come only while it serves.
        if self.factor == 666.0 and (columns["amount"] == 1.0).any():
            time.sleep(600)
        return columns["amount"] * self.factor


class Score(ps.ProcessFunction):
    model = ps.Model(
        "fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear, default=0.0, timeout="3s"
    )

    def process_batch(self, records: Any, ctx: ps.BatchContext) -> Any:
        scores = self.model.predict(records, ctx)
        return ctx.select(np.arange(len(records)), "card", score=scores.values, version=scores.versions)


job = ps.Job("cards", key_groups=8)
payments = job.data_stream("payments", schema="card INT, amount DOUBLE")
output = "card INT, score DOUBLE, version STRING"
payments.key_by("card").process("score", Score(), output=output).sink_to("scores")
"""


class Cards:
    """The job in a folder, with its input and output."""

    def __init__(self, folder: Path, session: SparkSession, **more: Any) -> None:
        self.folder = folder
        # The job files of one session must have different names.
        self.file = folder / f"cards_{uuid.uuid4().hex[:8]}.py"
        self.file.write_text(JOB)
        (folder / "payments").mkdir()
        self.checkpoint = folder / "checkpoint"
        bindings = {"payments": f"jsonl:{folder / 'payments'}", "scores": f"jsonl:{folder / 'scores'}"}
        settings = RunSettings(
            bindings, checkpoint=str(self.checkpoint), parallelism=2, allow_read=[str(folder.parent)], **more
        )
        self.run = JobInSession(session, self.file, settings)
        self.fed = 0

    def pay(self) -> None:
        """Send ten payments of as many cards; wait for their scores."""
        self.fed += 10
        write_lines(
            self.folder / "payments",
            f"{self.fed:03}.jsonl",
            [{"card": card, "amount": 1.0} for card in range(10)],
        )
        self.run.await_true(lambda: len(read_lines(self.folder / "scores")) == self.fed)

    def versions(self) -> list[str]:
        """Return the versions of the last ten scores."""
        return [found["version"] for found in read_lines(self.folder / "scores")[-10:]]

    def command(self, kind: str, **payload: Any) -> dict[str, Any]:
        """Send a command and wait for its last receipt."""
        name = uuid.uuid4().hex
        order = {"id": name, "kind": f"{kind}-model", "target": {"step": "score"}}
        folder = self.checkpoint / "commands"
        write_lines(folder, f"{name}.jsonl", [order | {"payload": {"model": "fraud", **payload}}])
        self.run.await_true(lambda: self.final(name))
        return self.final(name)

    def final(self, name: str) -> Any:
        found = [plain(one) for one in NewReceipts(self.checkpoint, from_start=True).read(name)]
        return next((one for one in found if one["status"] in ("APPLIED", "REJECTED")), None)

    def load(self, version: str, factor: float) -> None:
        """Load a version, and wait until it was examined beside the job."""
        content = save({"factor": np.array([factor])})
        path = self.folder / f"{version}.safetensors"
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.command("load", version=version, uri=str(path), sha256=sha256, format="safetensors")
        self.run.await_true(lambda: f"Version '{version}' of the model 'fraud'" in self.run.err)

    def load_late(self, version: str, factor: float) -> None:
        """Load a version whose file does not exist yet."""
        content = save({"factor": np.array([factor])})
        path = self.folder / f"{version}.safetensors"
        sha256 = hashlib.sha256(content).hexdigest()
        self.command("load", version=version, uri=str(path), sha256=sha256, format="safetensors")
        about = f"Version '{version}' of the model 'fraud' of step 'score'"
        self.run.await_true(lambda: f"{about} could not be fetched" in self.run.err)
        path.write_bytes(content)
        refused = self.command("validate", version=version)
        assert (refused["status"], "The job now tries it again" in refused["reason"]) == ("REJECTED", True)
        self.run.await_true(lambda: f"{about} was fetched and examined" in self.run.err)


@pytest.mark.parametrize(
    "mode",
    [{}, pytest.param({"checkpoint_interval_ms": 500}, marks=pytest.mark.chaos)],
    ids=["batches", "real time"],
)
def test_a_version_comes_into_a_running_job_and_goes_with_its_savepoint(
    mode: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    """This holds in both modes; a later job needs only the savepoint."""
    (tmp_path / "first").mkdir()
    cards = Cards(tmp_path / "first", spark, **mode)
    with cards.run:
        cards.run.await_true((cards.checkpoint / "commands").exists)
        cards.pay()
        assert cards.versions() == [""] * 10
        cards.load("1", 2.0)
        assert "1,000 records" in cards.run.err
        assert cards.command("validate", version="1")["status"] == "APPLIED"
        assert cards.command("promote", version="1")["status"] == "APPLIED"
        cards.pay()
        assert cards.versions() == ["1"] * 10
        cards.load_late("2", 3.0)
        cards.command("validate", version="2")
        refused = cards.command("promote", version="3")
        assert "no version '3'" in refused["reason"]
        cards.command("canary", version="2", share=0.5)
        cards.pay()
        chosen = cards.versions()
        assert set(chosen) == {"1", "2"}
        cards.run.stop()
    counts = json.loads((cards.checkpoint / "counts.json").read_text())
    scores = counts["scores"]["score"]["fraud"]
    assert scores["1"]["records"] + scores["2"]["records"] == 20
    assert counts["models"]["score"]["fraud"]["2"]["status"] == "CANARY"
    place = str(tmp_path / "savepoint")
    capture(spark, Checkpoint(cards.checkpoint), Capture("savepoint", place, "arrow"))
    for path in (tmp_path / "first").glob("*.safetensors"):
        path.unlink()
    (tmp_path / "second").mkdir()
    other = Cards(
        tmp_path / "second", spark, from_savepoint=place, keep_positions=False, retained_batches=2, **mode
    )
    with other.run:
        other.run.await_true((other.checkpoint / "commands").exists)
        other.pay()
        assert sorted(other.versions()) == sorted(chosen)
        assert other.command("promote", version="2")["status"] == "APPLIED"
        other.pay()
        assert other.versions() == ["2"] * 10
        assert_policy_rolls_back(other)
        assert_a_hanging_version_takes_nothing_with_it(other)
        assert_a_removed_version_leaves_the_checkpoint(other)
        other.run.stop()


def assert_policy_rolls_back(cards: Cards) -> None:
    """Check that a version without usable scores serves until the policy acts; the previous version scores
    meanwhile.
    """
    cards.load("bad", float("nan"))
    cards.command("validate", version="bad")
    policy = {"fraud-policy": {"max_failures": 0.5, "roll_back_records": 10}}
    write_lines(
        cards.checkpoint / "commands",
        "policy.jsonl",
        [{"id": "policy", "kind": "set", "target": {"step": "score"}, "payload": policy}],
    )
    cards.run.await_true(lambda: cards.final("policy"))
    promotion = cards.command("promote", version="bad")
    cards.pay()
    assert cards.versions() == ["2"] * 10
    cards.run.await_true(lambda: find_history(cards.checkpoint, promotion["id"]).last.status == "DEGRADED")
    undone = find_history(cards.checkpoint, promotion["id"])
    assert [one.status for one in undone.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED", "DEGRADED"]
    assert "the share of failures is 1, above 0.5" in undone.last.reason
    assert "rolls back version 'bad'" in cards.run.err
    (sent,) = [
        one for one in NewReceipts(cards.checkpoint, from_start=True).read() if one.issued_by == "policy"
    ][2:]
    assert (sent.kind, sent.status) == ("roll-back-model", "APPLIED")


def assert_a_hanging_version_takes_nothing_with_it(cards: Cards) -> None:
    """Check that its worker ends, the query restarts, the previous version scores, and the version is rolled
    back.
    """
    cards.load("hangs", 666.0)
    cards.command("validate", version="hangs")
    promotion = cards.command("promote", version="hangs")
    cards.pay()
    assert cards.versions() == ["2"] * 10
    cards.run.await_true(lambda: find_history(cards.checkpoint, promotion["id"]).last.status == "DEGRADED")
    reason = find_history(cards.checkpoint, promotion["id"]).last.reason
    assert reason == "a call of it has not answered within 3 s"
    assert "Version 'hangs' of the model 'fraud' of step 'score' is suspended" in cards.run.err
    suspended = [found for found in read_events(cards.checkpoint) if found.event == "model-suspended"]
    assert {found.details["version"] for found in suspended} == {"hangs"}
    cards.pay()
    assert cards.versions() == ["2"] * 10


def assert_a_removed_version_leaves_the_checkpoint(cards: Cards) -> None:
    """Check that its content is deleted once the checkpoint cannot go back to a micro-batch that uses it;
    others stay.
    """
    models = cards.checkpoint / "models"
    sha256 = hashlib.sha256((cards.folder / "bad.safetensors").read_bytes()).hexdigest()
    serving = next(models.glob(hashlib.sha256(save({"factor": np.array([3.0])})).hexdigest()))
    refused = cards.command("remove", version="2")
    assert "is SERVING" in refused["reason"]
    assert cards.command("remove", version="bad")["status"] == "APPLIED"
    assert (models / sha256).exists()
    for _ in range(3):
        cards.pay()
    cards.run.await_true(lambda: f"The content {sha256[:12]}... of a model" in cards.run.err)
    assert not (models / sha256).exists()
    assert serving.exists()
    assert cards.versions() == ["2"] * 10
