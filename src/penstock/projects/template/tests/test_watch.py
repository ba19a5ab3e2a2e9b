"""The step by itself, without Spark: values in memory stand in for the states of one sensor."""

from project_name.watch import Alert, Limit, Reading, Watch


class Held:
    """A state or a setting in memory."""

    def __init__(self, value=None):
        self.value = value

    def get(self):
        return self.value

    def set(self, value):
        self.value = value


def alerts(watch, *values):
    """What the step emits for readings of one sensor. It asks the context for nothing, so there is none."""
    return [alert for value in values for alert in watch.process_record(Reading("boiler", value), None)]


def new_watch(limit=None, patience=2):
    watch = Watch()
    watch.limit, watch.times_above, watch.patience = Held(limit), Held(), Held(patience)
    return watch


def test_a_sensor_that_stays_above_its_limit_gives_alerts():
    """From the second reading on, with how many there were."""
    assert alerts(new_watch(80.0), 81.0, 82.0, 83.0) == [Alert("boiler", 82.0, 2), Alert("boiler", 83.0, 3)]


def test_a_reading_within_the_limit_begins_the_count_anew():
    """The limit itself is within."""
    assert alerts(new_watch(80.0), 81.0, 80.0, 81.0) == []


def test_a_sensor_without_a_limit_gives_none():
    """Until one is set."""
    watch = new_watch()
    assert alerts(watch, 99.0, 99.0) == []
    watch.process_control(Limit("boiler", 80.0), None)
    assert alerts(watch, 99.0, 99.0) == [Alert("boiler", 99.0, 2)]


def test_the_setting_says_how_many_it_takes():
    """It is a number of readings in a row."""
    assert alerts(new_watch(80.0, patience=1), 81.0) == [Alert("boiler", 81.0, 1)]
