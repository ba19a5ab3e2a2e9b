"""One Spark session for all integration tests, and a short way to run a job in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.jobs.runner import JobRunner, RunSummary
from penstock.jobs.settings import RunSettings
from penstock.runtime.session import SessionSettings, open_session

RunJob = Callable[..., RunSummary]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session with two cores."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SessionSettings("tests", "local[2]", 2, needs_kafka=True, log_file=log)) as session:
        yield session


@pytest.fixture
def run_job(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> RunJob:
    """Run a job of the test's own module, bounded, in the shared session."""

    def run(job: ps.Job, bindings: dict[str, str], **settings: Any) -> RunSummary:
        settings.setdefault("checkpoint", str(tmp_path / "checkpoint"))
        runner = JobRunner(
            job,
            RunSettings(bindings=bindings, bounded=True, **settings),
            code=tuple(sorted(request.path.parent.glob("*.py"))),
        )
        return runner.run()

    return run
