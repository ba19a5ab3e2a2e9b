"""How the dashboard describes a job's health."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.server.api.models import Command
from penstock.server.dashboard.forms import WrongInputError, check_form
from penstock.server.dashboard.health import ATTENTION, Level, health_of, lag_of, throughput_of
from penstock.server.dashboard.jobs_page import job_row
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.service.job_resources import Job

NOW_MS = 1_800_000_000_000


def job(
    status: JobStatus = JobStatus.RUNNING,
    progress: dict[str, Any] | None = None,
    restarts: int = 0,
    since_s: int = 3600,
) -> Job:
    return Job(
        id="rooms-1",
        name="rooms",
        definition="rooms",
        status=status,
        desired=Desired.RUNNING,
        reason="so it was told",
        since_ms=NOW_MS - since_s * 1000,
        created_ms=NOW_MS - 7_200_000,
        created_by="ann",
        run=1,
        restarts=restarts,
        next_start_ms=None,
        restart="none",
        mode="micro-batches",
        checkpoint_interval_ms=0,
        bindings={},
        settings={},
        progress=progress,
        scaling=None,
    )


@pytest.mark.parametrize("status", JobStatus)
def test_each_status_has_a_word_and_an_icon(status: JobStatus) -> None:
    """So health is not shown by colour alone; there is a reason, too."""
    health = health_of(job(status), NOW_MS)
    assert health.word
    assert health.icon
    assert health.why.endswith((".", "told"))


@pytest.mark.parametrize(
    ("made", "word", "level"),
    [
        (job(), "Healthy", Level.GOOD),
        (job(progress={"lag": {"visits": {"records": 5, "seconds": 60.0}}}), "Healthy", Level.GOOD),
        (
            job(progress={"lag": {"visits": {"seconds": 1.0}, "clicks": {"seconds": 61.0}}}),
            "Behind",
            Level.WARNING,
        ),
        (job(progress={"dead_letters": 3}), "Dead letters", Level.WARNING),
        (job(restarts=2, since_s=60), "Recovered", Level.WARNING),
        (job(restarts=2, since_s=601), "Healthy", Level.GOOD),
        (job(JobStatus.FAILED), "Failed", Level.BAD),
        (job(JobStatus.RESTARTING), "Restarting", Level.WARNING),
        (job(JobStatus.STARTING), "Starting", Level.BUSY),
        (job(JobStatus.PAUSED), "Paused", Level.IDLE),
        (job(JobStatus.CANCELED, {"dead_letters": 3}), "Canceled", Level.IDLE),
    ],
)
def test_health_follows_from_status_and_progress(made: Job, word: str, level: Level) -> None:
    """The level says who has to act."""
    health = health_of(made, NOW_MS)
    assert (health.word, health.level) == (word, level)
    assert (level in ATTENTION) == (word in {"Behind", "Dead letters", "Recovered", "Failed", "Restarting"})


def test_numbers_are_those_of_a_job_with_a_driver() -> None:
    """The last report of an ended job is not shown as current."""
    progress = {
        "rows_per_s": 12.5,
        "lag": {"a": {"records": 3}, "b": {"records": 4, "bytes": 9}, "c": {}, "d": None},
    }
    assert throughput_of(job(progress=progress)) == 12.5
    assert throughput_of(job(JobStatus.FINISHED, progress)) is None
    assert throughput_of(job()) is None
    assert lag_of(job(progress=progress)) == ("records", 7.0)
    assert lag_of(job(progress={"lag": {"a": {"files": 2, "seconds": 9.0}}})) == ("files", 2.0)
    assert lag_of(job(progress={"lag": {"a": {"seconds": 9.0}}})) == ("s", 9.0)
    assert lag_of(job(progress={"lag": {"a": {}}})) is None
    assert lag_of(job(JobStatus.PAUSED, progress)) is None


def test_a_job_that_is_behind_counts_as_running_too() -> None:
    """It works, but needs attention."""
    behind = job(progress={"lag": {"readings": {"seconds": 600.0}}})
    assert job_row(behind, NOW_MS)["groups"] == ["attention", "running"]
    assert job_row(job(), NOW_MS)["groups"] == ["running"]
    assert job_row(job(JobStatus.PAUSED), NOW_MS)["groups"] == ["paused"]
    assert job_row(job(JobStatus.RESTARTING), NOW_MS)["groups"] == ["attention", "paused"]
    assert job_row(job(JobStatus.FAILED), NOW_MS)["groups"] == ["attention", "ended"]


def test_a_form_says_what_to_fill_in() -> None:
    """The text is for users, not for the authors of the models."""
    with pytest.raises(WrongInputError, match=r"^Fill in kind\.$"):
        check_form(Command, {"kind": "", "target": "*"})
    with pytest.raises(WrongInputError, match=r"^Version cannot be -1: "):
        check_form(Command, {"kind": "pause", "target": "*", "version": -1})
