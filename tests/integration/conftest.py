"""Fixtures to run a job in the Spark session that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration_support import RunJob
from pyspark.sql import SparkSession

import penstock as ps
from penstock.jobs.runner import JobRunner, RunSummary
from penstock.jobs.settings import RunSettings


@pytest.fixture
def run_job(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> RunJob:
    """Run a bounded job of the test's own module in the shared session."""

    def run(job: ps.Job, bindings: dict[str, str], **settings: Any) -> RunSummary:
        settings.setdefault("checkpoint", str(tmp_path / "checkpoint"))
        runner = JobRunner(
            job,
            RunSettings(bindings=bindings, bounded=True, **settings),
            code={path.name: path for path in sorted(request.path.parent.glob("*.py"))},
        )
        return runner.run()

    return run
