"""Tests of the statements without Spark: a harness runs the job in this process, one micro-batch at a time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock as ps
import pytest
from penstock.testing import JobHarness

STATEMENTS = Path(__file__).parents[1] / "project_name.sql"
START = datetime(2026, 1, 5, 8, tzinfo=UTC)


@pytest.fixture
def run():
    """The job, as penstock sql describes it."""
    job = ps.Job("project-name")
    job.sql(STATEMENTS.read_text())
    return JobHarness(job, strict=True)


def send(run, *values, minute=0):
    """Send readings of one sensor, all in one minute."""
    at = START + timedelta(minutes=minute)
    run.send("readings", *[{"sensor": "boiler", "value": value, "at": at} for value in values])
    run.run_batch()


def alerts(run):
    """Return the alerts so far."""
    return [(alert.mean, alert.records) for alert in run.output("alerts")]


def test_a_mean_above_the_limit_is_an_alert_once_its_minute_is_over(run):
    """A crash in between changes nothing."""
    send(run, 79.0, 85.0)
    run.crash()
    assert alerts(run) == []
    send(run, 20.0, minute=2)
    assert alerts(run) == [(82.0, 2)]


def test_a_mean_within_the_limit_is_no_alert(run):
    """A mean equal to the limit is within it."""
    send(run, 79.0, 81.0)
    run.finish()
    assert alerts(run) == []


def test_a_command_changes_the_limit(run):
    """From the next micro-batch on."""
    run.send_command("set", "alerts.where", {"highest": 60.0})
    send(run, 61.0)
    run.finish()
    assert alerts(run) == [(61.0, 1)]
