"""The fraud-scoring example: its versions score as scikit-learn does, and the better one finds more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.jobs.job_loader import load_job
from penstock.testing import JobHarness

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_each_version_is_valid_and_the_second_finds_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is valid ONNX, with its exported sample."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from fraud_scoring.feed import day  # type: ignore[import-not-found]  # found by the line above
    from fraud_scoring.train import train  # type: ignore[import-not-found]  # found by the line above

    train(tmp_path)
    run = JobHarness(load_job(str(EXAMPLES / "fraud_scoring" / "fraud_job.py")).job)
    payments, fraud = day(1, 500)
    found = {}
    for version in "123":
        path = tmp_path / f"{version}.onnx"
        sample = json.loads(path.with_suffix(".sample.json").read_text())
        run.load_model("score", "fraud", version, path.read_bytes(), format="onnx", sample=sample)
        for kind in ("validate-model", "promote-model"):
            command = run.send_command(kind, "score", {"model": "fraud", "version": version})
        run.send("payments", *payments)
        scores = run.run_batch().output("scores")
        assert run.receipts(command)[-1].status == "APPLIED"
        assert {score.version for score in scores} == {version}
        found[version] = {score.payment for score in scores if score.score >= 0.5}
    assert len(found["1"] & set(fraud)) < 0.7 * len(fraud) < 0.9 * len(fraud) < len(found["2"] & set(fraud))
    assert len(found["3"] - set(fraud)) > 100
    # Its scores from the micro-batch in which it was promoted do not count.
    for _ in range(2):
        run.send("payments", *payments)
        scores = run.run_batch().output("scores")
    assert {score.version for score in scores} == {"2"}
    (undone,) = [one for one in run.receipts(command) if one.status == "DEGRADED"]
    assert "the KS statistic is" in undone.reason
    for module in [name for name in sys.modules if name.startswith("fraud_scoring")]:
        del sys.modules[module]
