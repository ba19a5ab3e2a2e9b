"""Scaling policy: its fields, and how it is read from text. docs/scaling.md describes every field."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import yaml

from penstock.base.durations import milliseconds
from penstock.errors import JobDefinitionError

__all__ = ["DEFAULT_POLICY", "ScalingPolicy", "parse_policy", "policy_of"]

_MAX_TASKS: Final = 32768
_REMEDY: Final = "docs/scaling.md lists the fields."
# The fields that are durations, with their minimum in seconds.
_DURATIONS: Final = {
    "window": 1.0,
    "scale_in_after": 1.0,
    "cool_down": 0.0,
    "longest_interval": 0.001,
    "longest_lag": 0.001,
    "catch_up": 1.0,
}


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a job is scaled.

    Args:
        target_utilisation: the fraction of time for which the job should work, from 0 to 1.
        scale_out_above: the job gets more tasks if it works for more of the time than this.
        scale_in_below: the job gets fewer tasks if it works for less of the time than this.
        min_tasks, max_tasks: the limits of the parallelism; None is the number of key groups.
        min_factor: a rescale multiplies or divides the number of tasks by at least this.
        window_s: the period for the rate of arrival, in seconds.
        scale_in_after_s: how long fewer tasks must have sufficed, in seconds.
        cool_down_s: the minimum time between two rescales, in seconds.
        max_rescales_per_hour: the maximum number of rescales within an hour.
        longest_interval_s: the maximum time from the start of one micro-batch to that of the next, in seconds.
        longest_lag_s: the maximum time for which records may wait before they are read, in seconds.
        catch_up_s: the time within which a backlog should be processed, in seconds.
        dry_run: decisions are reported but not carried out.

    Raises JobDefinitionError when a value is out of range or two values contradict each other.

    """

    target_utilisation: float = 0.7
    scale_out_above: float = 0.85
    scale_in_below: float = 0.45
    min_tasks: int = 1
    max_tasks: int | None = None
    min_factor: float = 2.0
    window_s: float = 60.0
    scale_in_after_s: float = 300.0
    cool_down_s: float = 180.0
    max_rescales_per_hour: int = 4
    longest_interval_s: float = 10.0
    longest_lag_s: float = 30.0
    catch_up_s: float = 300.0
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.scale_in_below < self.target_utilisation < self.scale_out_above <= 1:
            raise JobDefinitionError(
                f"The scaling policy has scale_in_below {self.scale_in_below:g}, target_utilisation "
                f"{self.target_utilisation:g} and scale_out_above {self.scale_out_above:g}; they must rise in this "
                "order, from above 0 to at most 1."
            )
        most = _MAX_TASKS if self.max_tasks is None else self.max_tasks
        if not 1 <= self.min_tasks <= most <= _MAX_TASKS:
            raise JobDefinitionError(
                f"The scaling policy has min_tasks {self.min_tasks} and max_tasks {self.max_tasks}; they must be "
                f"from 1 to {_MAX_TASKS}, and the least not above the most."
            )
        if not 1 <= self.min_factor <= 100:
            raise JobDefinitionError(
                f"The scaling policy has min_factor {self.min_factor:g}; it must be from 1 to 100."
            )
        if self.max_rescales_per_hour < 1:
            raise JobDefinitionError(
                f"The scaling policy has max_rescales_per_hour {self.max_rescales_per_hour}; it must be at least 1. "
                "To prevent all rescales, use dry_run: true."
            )
        for name, min_s in _DURATIONS.items():
            value_s = getattr(self, f"{name}_s")
            if not min_s <= value_s < math.inf:
                raise JobDefinitionError(
                    f"The scaling policy has {name} {value_s:g} s; it must be at least {min_s:g} s."
                )
        if self.scale_in_after_s < self.window_s:
            raise JobDefinitionError(
                f"The scaling policy has scale_in_after {self.scale_in_after_s:g} s and window {self.window_s:g} s; "
                "scale_in_after must be at least as long as window."
            )


DEFAULT_POLICY: Final = ScalingPolicy()
"""The policy that applies if there is no file."""


def parse_policy(text: str) -> ScalingPolicy:
    r"""Parse a policy from YAML or JSON: an object of fields, with durations such as "500ms", "5s", "3m" or "1h".

    Raises JobDefinitionError, which names the field.

    >>> parse_policy("max_tasks: 8\ncool_down: 5m").cool_down_s
    300.0
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise JobDefinitionError(f"The scaling policy is neither YAML nor JSON: {_one_line(e)}.") from e
    return policy_of({} if found is None else found)


def policy_of(found: Any) -> ScalingPolicy:
    """Return the policy in an object of fields, such as the one in the definition of a job.

    Raises JobDefinitionError, which names the field.

    >>> policy_of({"max_tasks": 8, "cool_down": "5m"}).max_tasks
    8
    """
    if not isinstance(found, dict):
        raise JobDefinitionError(
            f"The scaling policy is of type {type(found).__name__}; it must be an object. {_REMEDY}"
        )
    values: dict[str, Any] = {}
    known = _names()
    for name, value in found.items():
        if name not in known:
            raise JobDefinitionError(
                f"The scaling policy has the unknown field {name!r}. The fields are: {', '.join(known)}."
            )
        if name in _DURATIONS:
            what = f"The field {name} of the scaling policy"
            values[f"{name}_s"] = milliseconds(value, what) / 1000
        else:
            values[name] = value
    try:
        return msgspec.convert(values, ScalingPolicy)
    except msgspec.ValidationError as e:
        raise JobDefinitionError(f"The scaling policy is not valid: {e}. {_REMEDY}") from e


def _names() -> list[str]:
    """Return the names of the fields in text, where durations have their unit in the value."""
    return [
        name.removesuffix("_s") if name.removesuffix("_s") in _DURATIONS else name
        for name in ScalingPolicy.__struct_fields__
    ]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
