"""Tests of the job without Spark: a harness runs it in this process, one micro-batch at a time."""

import pytest
from job import job
from penstock.testing import JobHarness
from project_name.watch import Alert, Limit, Reading


@pytest.fixture
def run():
    """The job, with a limit for one sensor."""
    harness = JobHarness(job, strict=True)
    harness.send("limits", Limit("boiler", 80.0))
    return harness


def alerts(run, *values):
    """Return the alerts of the job for readings of the sensor."""
    run.send("readings", [Reading("boiler", value) for value in values])
    return run.run_batch().output("alerts")


def test_a_sensor_that_stays_above_its_limit_raises_alerts(run):
    """Alerts start with the second reading and have the count; a crash in between changes nothing."""
    assert alerts(run, 81.0) == []
    run.crash()
    assert alerts(run, 82.0, 83.0) == [Alert("boiler", 82.0, 2), Alert("boiler", 83.0, 3)]


def test_a_reading_within_the_limit_resets_the_count(run):
    """A reading equal to the limit is within it."""
    assert alerts(run, 81.0, 80.0, 81.0) == []


def test_a_sensor_without_a_limit_raises_no_alerts(run):
    """The limits of other sensors do not apply."""
    run.send("readings", Reading("pump", 99.0), Reading("pump", 99.0))
    assert run.run_batch().outputs == {}


def test_the_setting_is_the_number_of_readings(run):
    """A command changes how many readings in a row raise an alert."""
    run.send_command("set", "watch", {"patience": 1})
    assert alerts(run, 81.0) == [Alert("boiler", 81.0, 1)]
