"""The policy of autoscaling as text: what is read, and what is refused with which words."""

from __future__ import annotations

import pytest

from penstock.errors import JobDefinitionError
from penstock.scaling.policy import DEFAULT_POLICY, ScalingPolicy, parse_policy


def test_every_field_is_read() -> None:
    """From YAML; durations in units of one's own."""
    text = """
        target_utilisation: 0.6
        scale_out_above: 0.8
        scale_in_below: 0.3
        min_tasks: 2
        max_tasks: 16
        min_factor: 1.5
        window: 30s
        scale_in_after: 10m
        cool_down: 0s
        max_rescales_per_hour: 6
        longest_interval: 500ms
        longest_lag: 1m
        catch_up: 1h
        dry_run: true
    """
    assert parse_policy(text) == ScalingPolicy(
        target_utilisation=0.6,
        scale_out_above=0.8,
        scale_in_below=0.3,
        min_tasks=2,
        max_tasks=16,
        min_factor=1.5,
        window_s=30,
        scale_in_after_s=600,
        cool_down_s=0,
        max_rescales_per_hour=6,
        longest_interval_s=0.5,
        longest_lag_s=60,
        catch_up_s=3600,
        dry_run=True,
    )


def test_json_is_read_as_well() -> None:
    assert parse_policy('{"max_tasks": 4, "window": "2m"}') == ScalingPolicy(max_tasks=4, window_s=120)


@pytest.mark.parametrize("text", ["", "{}", "# nothing is set\n"])
def test_what_is_not_said_is_the_default(text: str) -> None:
    assert parse_policy(text) == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "max_task: 4",
            "has the unknown field 'max_task'. The fields are: target_utilisation, ",
        ),
        ("cool_down_s: 4", "has the unknown field 'cool_down_s'. The fields are: "),
        (
            "cool_down: 4",
            "The field cool_down of the scaling policy is 4; give a timedelta, or a number with a unit",
        ),
        ("cool_down: soon", "The field cool_down of the scaling policy is 'soon'"),
        ("window: 10ms", "has window 0.01 s; it must be at least 1 s."),
        ("window: 10m", "scale_in_after must be at least as long as window"),
        ("max_tasks: many", r"is not valid: Expected `int \| null`, got `str` - at `\$.max_tasks`"),
        ("dry_run: 1", "is not valid: Expected `bool`, got `int`"),
        ("target_utilisation: 0.9", "they must rise in this order"),
        ("scale_out_above: 1.1", "to at most 1"),
        ("scale_in_below: .nan", "they must rise in this order"),
        ("min_tasks: 0", "must be from 1 to 32768"),
        ("{min_tasks: 5, max_tasks: 4}", "the least not above the most"),
        ("max_tasks: 40000", "must be from 1 to 32768"),
        ("min_factor: 0.5", "has min_factor 0.5; it must be from 1 to 100"),
        ("max_rescales_per_hour: 0", "use dry_run: true"),
        ("- 1", "is of type list; it must be an object"),
        ("a: [", "is neither YAML nor JSON: "),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    """With the field, the value, and what would do."""
    with pytest.raises(JobDefinitionError, match=said):
        parse_policy(text)


def test_a_policy_that_is_made_in_python_is_checked_alike() -> None:
    with pytest.raises(JobDefinitionError, match="has cool_down -1 s; it must be at least 0 s"):
        ScalingPolicy(cool_down_s=-1)
