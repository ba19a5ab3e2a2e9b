"""Parameters: validated at every use, and changeable while windows are open."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pytest

from penstock.errors import JobDefinitionError
from penstock.windows.window_parameters import Parameter


def test_a_duration_is_kept_in_milliseconds() -> None:
    """Durations may be given in any supported form."""
    assert Parameter.duration("5s", "the size").value == 5_000
    assert Parameter.duration(dt.timedelta(minutes=1), "the size").value == 60_000
    assert Parameter.duration(Parameter("500ms"), "the size").value == 500


def test_a_change_counts_as_a_version() -> None:
    """An equal value is no change, in whatever form it is given."""
    size = Parameter("5s")
    assert Parameter.duration(size, "the size") is size
    size.set("5000ms")
    assert (size.value, size.version) == (5_000, 0)
    size.set("1m")
    assert (size.value, size.version) == (60_000, 1)


@pytest.mark.parametrize("refused", ["0s", "soon", 5, None])
def test_a_change_is_checked_as_the_first_value(refused: Any) -> None:
    """A refused change has no effect."""
    size = Parameter.duration("5s", "the size of the window")
    with pytest.raises(JobDefinitionError, match="the size of the window is"):
        size.set(refused)
    assert (size.value, size.version) == (5_000, 0)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "3"])
def test_a_count_is_a_whole_number(given: Any) -> None:
    """At least 1."""
    with pytest.raises(JobDefinitionError, match=r"the count is .*; give a whole number, at least 1"):
        Parameter.count(given, "the count")
    assert Parameter.count(3, "the count").value == 3


@pytest.mark.parametrize("given", [None, "3", float("nan"), False])
def test_a_threshold_is_a_number(given: Any) -> None:
    """Of any size."""
    with pytest.raises(JobDefinitionError, match=r"the threshold is .*; give a number"):
        Parameter.number(given, "the threshold")
    assert Parameter.number(-0.5, "the threshold").value == -0.5


def test_a_parameter_may_be_used_twice() -> None:
    """Both uses must be of the same kind."""
    shared = Parameter("5s")
    Parameter.duration(shared, "the gap")
    Parameter.duration(shared, "the lateness", min_ms=2_000)
    with pytest.raises(JobDefinitionError, match="at least 2000 ms"):
        shared.set("1s")
    with pytest.raises(JobDefinitionError, match="the count is '5s'"):
        Parameter.count(shared, "the count")


def test_parameters_travel() -> None:
    """They keep their current values and validation when pickled."""
    size = Parameter.duration("5s", "the size")
    size.set("6s")
    there = pickle.loads(pickle.dumps(size))
    assert (there.value, there.version) == (6_000, 1)
    with pytest.raises(JobDefinitionError):
        there.set("never")
