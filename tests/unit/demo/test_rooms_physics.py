"""Simulated rooms: temperatures, heaters, and owners who change their minds."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.demo.example import load_fold
from penstock.demo.rooms import OUTSIDE, Rooms


def test_the_same_seed_gives_the_same_rooms() -> None:
    """Two simulations with one seed are equal; another seed gives another one."""
    lives = []
    for seed in (1, 1, 2):
        rooms = Rooms(5, seed)
        for _ in range(10):
            rooms.advance(0.25)
            rooms.change_setting(among=5)
        lives.append((rooms.readings(), rooms.settings()))
    assert lives[0] == lives[1] != lives[2]


def test_without_heat_rooms_cool_down_to_the_weather_outside() -> None:
    """They come near the outside temperature, however long a step is, and never far below it."""
    for step in (0.25, 60.0):
        rooms = Rooms(3)
        for _ in range(int(600 / step)):
            rooms.advance(step)
        assert np.allclose(rooms.temperature, OUTSIDE, atol=1.0)


def test_heaters_do_what_commands_say_and_nothing_else() -> None:
    """Only rooms with a command switch; a heated room gets warmer, others colder."""
    rooms = Rooms(3)
    before = rooms.temperature.copy()
    rooms.obey([{"sensor_id": 2, "command": "ON"}, {"sensor_id": 3, "command": "ON"}])
    rooms.obey([{"sensor_id": 3, "command": "OFF"}])
    assert rooms.heating.tolist() == [False, True, False]
    rooms.advance(2.0)
    assert (rooms.temperature > before).tolist() == [False, True, False]


@pytest.mark.parametrize("heating", [False, True])
def test_a_control_change_makes_the_heater_switch(heating: bool) -> None:
    """The next reading after a change causes the opposite command, which makes its effect visible."""
    rooms = Rooms(12)
    rooms.obey([{"sensor_id": sensor, "command": "ON" if heating else "OFF"} for sensor in range(1, 13)])
    for _ in range(12):
        change, setting = rooms.change_setting(among=12)
        assert setting["sensor_id"] == change.sensor_id
        assert setting["desired"] == change.after
        fold = load_fold()
        fold.take_setting(setting)
        command = fold.judge({"sensor_id": change.sensor_id, "temperature": change.measured})
        assert command == {"sensor_id": change.sensor_id, "command": "OFF" if heating else "ON"}


def test_changes_go_round_the_rooms_that_are_shown() -> None:
    """Each of the first rooms gets its turn; others do not."""
    rooms = Rooms(100)
    changed = [rooms.change_setting(among=4)[0].sensor_id for _ in range(8)]
    assert changed == [1, 2, 3, 4, 1, 2, 3, 4]


def test_a_change_comes_even_when_no_room_can_switch() -> None:
    """At the end of the scale the owner still requests another temperature."""
    rooms = Rooms(1)
    rooms.temperature[:] = 30.0
    change, _ = rooms.change_setting(among=1)
    assert change.after != change.before


def test_with_the_fold_in_the_loop_rooms_stay_where_their_owners_want_them() -> None:
    """In a closed loop each room ends up in its band, give or take one step."""
    rooms, fold = Rooms(12), load_fold()
    for setting in rooms.settings():
        fold.take_setting(setting)
    for step in range(400):
        rooms.advance(0.1)
        rooms.obey([command for reading in rooms.readings() if (command := fold.judge(reading)) is not None])
        if step > 300:
            assert np.all(np.abs(rooms.temperature - rooms.desired) < rooms.band + 0.3)
