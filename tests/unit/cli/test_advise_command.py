"""`penstock advise`: what it prints of the metrics in a checkpoint, and its exit codes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from simulated_job import Nature, SimulatedJob
from typed_commands import refused, told, typed

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.metrics.batch_metrics import BatchMetricsWriter


def advice(*arguments: object) -> Any:
    return told(typed("advise", *arguments, "-o", "json"))


def refusal(*arguments: object) -> str:
    result = typed("advise", *arguments)
    refused(result, "")
    return result.stderr.replace("\n", " ")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the checkpoint of an overloaded job with two tasks."""
    return stored(
        tmp_path,
        SimulatedJob(
            Nature(interval_s=5, max_records=20_000),
            lambda seconds: 2200 + 300 * math.sin(seconds / 20),
            tasks=2,
        ).run(900),
    )


def stored(folder: Path, job: SimulatedJob) -> Path:
    """The checkpoint of a job with its metrics."""
    Checkpoint(folder).begin(Lineage("a", "shop", job.nature.key_groups, job.tasks, ("visits",)))
    writer = BatchMetricsWriter(folder)
    for metrics in job.metrics:
        writer.append(metrics)
    writer.close()
    return folder


def test_advice_as_text(checkpoint: Path) -> None:
    """It has a table of settings, then the reason and the confidence of each."""
    result = typed("advise", checkpoint)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("shop: ")
    assert any(line.split() == ["│", "parallelism", "│", "2", "│", "5", "│"] for line in lines), result.stdout
    assert any(line.startswith("parallelism: The load is ") for line in lines)
    assert any(line.startswith("Confidence: ") for line in lines)


def test_advice_as_json(checkpoint: Path) -> None:
    """It includes the underlying metrics; without a policy there is no decision."""
    found = advice(checkpoint)
    assert [one["setting"] for one in found["recommendations"]] == [
        "parallelism",
        "batch-interval-ms",
        "cores",
    ]
    assert found["recommendations"][0]["wanted"] == 5
    assert found["recommendations"][0]["measurements"]["arriving_per_s"] == pytest.approx(2200, rel=0.1)
    assert found["measured"]["cost"]["tasks_s"] == pytest.approx(0.0005, rel=0.05)
    assert "decision" not in found


def test_cores_and_the_window_count(checkpoint: Path) -> None:
    found = advice(checkpoint, "--cores", 2, "--window", 60)
    assert found["measured"]["seconds"] < 90
    assert "on 2 cores" in found["recommendations"][0]["why"]


def test_cores_are_those_of_the_metrics(tmp_path: Path) -> None:
    """An option overrides them."""
    stored(tmp_path, SimulatedJob(Nature(interval_s=5, cores=4), lambda _: 900.0, tasks=2).run(300))
    assert [advice(tmp_path, *more)["recommendations"][2]["now"] for more in ((), ("--cores", 3))] == [4, 3]


def test_a_policy_is_advised_by_and_decides(checkpoint: Path, tmp_path: Path) -> None:
    policy = tmp_path / "scaling.yaml"
    policy.write_text("max_tasks: 3\ndry_run: true\n")
    found = advice(checkpoint, "--policy", policy)
    assert (found["decision"]["action"], found["decision"]["tasks"]) == ("rescale", 3)
    text = typed("advise", checkpoint, "--policy", policy).stdout
    assert "The policy would decide: rescale from 2 to 3." in text


def test_a_job_without_metrics_gets_no_advice(tmp_path: Path) -> None:
    stored(tmp_path, SimulatedJob(Nature(), lambda _: 1.0))
    found = advice(tmp_path, "--policy", policy_file(tmp_path, ""))
    assert (found["confidence"], found["recommendations"], found["decision"]) == ("none", [], None)
    assert "Confidence: none." in typed("advise", tmp_path).stdout


def test_wrong_use_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """The error says what is wrong: no checkpoint, no policy, or an invalid one."""
    assert "is not a checkpoint of a job that was started" in refusal(tmp_path / "nothing")
    assert "cannot be read" in refusal(checkpoint, "--policy", tmp_path / "nothing")
    bad = policy_file(tmp_path, "most: 3")
    assert "has the unknown field 'most'. The fields are: " in refusal(checkpoint, "--policy", bad)


def policy_file(folder: Path, text: str) -> Path:
    found = folder / "policy.yaml"
    found.write_text(text)
    return found
