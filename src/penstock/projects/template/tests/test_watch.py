"""The job without Spark: a harness runs it in this process, one micro-batch at a time."""

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
    """What the job emits for readings of the sensor."""
    run.send("readings", [Reading("boiler", value) for value in values])
    return run.run_batch().output("alerts")


def test_a_sensor_that_stays_above_its_limit_gives_alerts(run):
    """From the second reading on, with how many there were; a crash in between changes nothing."""
    assert alerts(run, 81.0) == []
    run.crash()
    assert alerts(run, 82.0, 83.0) == [Alert("boiler", 82.0, 2), Alert("boiler", 83.0, 3)]


def test_a_reading_within_the_limit_begins_the_count_anew(run):
    """The limit itself is within."""
    assert alerts(run, 81.0, 80.0, 81.0) == []


def test_a_sensor_without_a_limit_gives_none(run):
    """Whatever limits other sensors have."""
    run.send("readings", Reading("pump", 99.0), Reading("pump", 99.0))
    assert run.run_batch().outputs == {}


def test_the_setting_says_how_many_it_takes(run):
    """It is a number of readings in a row, and a command changes it."""
    run.send_command("set", "watch", {"patience": 1})
    assert alerts(run, 81.0) == [Alert("boiler", 81.0, 1)]
