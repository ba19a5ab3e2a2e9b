"""Pytest plugin: the fixture `job_harness`. The report of a failed test includes its last micro-batch.

Every pytest session loads this plugin, even without a test that has a job. So it is outside the package `penstock`,
which takes a while to import, and imports it only when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from penstock.streams.job_description import JobDescription
    from penstock.testing.harness import JobHarness

__all__ = ["NewHarness", "job_harness", "pytest_runtest_makereport"]

_MADE: Final = pytest.StashKey[list["JobHarness"]]()


class NewHarness(Protocol):
    """The type of the fixture: a function that makes a `JobHarness`, with the same options."""

    def __call__(self, job: JobDescription, **options: Any) -> JobHarness:
        """Make a harness for a job."""


@pytest.fixture
def job_harness(request: pytest.FixtureRequest) -> NewHarness:
    """Return a function that makes harnesses. If the test fails, its report shows their last micro-batch."""
    made: list[JobHarness] = request.node.stash.setdefault(_MADE, [])

    def make(job: JobDescription, **options: Any) -> JobHarness:
        from penstock.testing.harness import JobHarness

        made.append(JobHarness(job, **options))
        return made[-1]

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last micro-batch of each harness to the report of a failed test."""
    report = yield
    if report.failed:
        for harness in item.stash.get(_MADE, []):
            report.sections.append((f"job {harness.runner.job.name}", harness.report()))
    return report
