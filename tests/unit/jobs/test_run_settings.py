"""Run settings: what is out of range is refused before anything starts, with the value and the range."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import JobDefinitionError
from penstock.jobs.settings import RunSettings

WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"parallelism": 0}, ("parallelism is 0", "from 1 to 32768")),
    ({"parallelism": -3}, ("parallelism is -3", "from 1 to 32768")),
    ({"parallelism": 32769}, ("parallelism is 32769", "from 1 to 32768")),
    ({"batch_interval_ms": -1}, ("batch interval is -1 ms", "not be negative")),
    ({"retained_batches": 1}, ("retained_batches is 1", "at least 2")),
    *(
        ({"checkpoint": uri}, (repr(uri), "cannot hold a checkpoint", "s3://BUCKET/PREFIX"))
        for uri in ("webhdfs://host:9870/rooms", "file:///rooms", "http://host/rooms")
    ),
    ({"checkpoint": "s3://bucket/x", "fresh": True}, ("cannot be put aside", "another prefix")),
    ({"lock_timeout_s": -0.5}, ("lock_timeout_s is -0.5", "0 or more")),
    ({"lock_timeout_s": float("inf")}, ("lock_timeout_s is inf", "0 or more")),
    *(
        (
            {"master": master},
            (repr(master), "not a Spark master", "local[N]", "spark://HOST:PORT", "k8s://URL"),
        )
        for master in (
            "",
            "local[]",
            "local[0]",
            "local[x]",
            "local[2",
            "Local",
            "mesos://host:5050",
            "spark://",
            "spark://host",
            "spark://host:port",
            "k8s://",
            "yarn://host",
            "host:7077",
        )
    ),
]


@pytest.mark.parametrize(("settings", "parts"), WRONG, ids=str)
def test_a_setting_out_of_range_is_refused(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    """The message has the value and what is allowed."""
    with pytest.raises(JobDefinitionError) as raised:
        RunSettings(**settings)
    assert all(part in str(raised.value) for part in parts), raised.value


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"parallelism": 1},
        {"parallelism": 32768},
        {"batch_interval_ms": 0},
        {"retained_batches": 2},
        *(
            {"master": master}
            for master in (
                "local",
                "local[1]",
                "local[*]",
                "local[12,3]",
                "local[*,4]",
                "spark://127.0.0.1:7077",
                "spark://a:7077,b:7077",
                "k8s://https://10.0.0.1:6443",
                "yarn",
            )
        ),
    ],
    ids=str,
)
def test_the_ends_of_each_range_are_allowed(settings: dict[str, Any]) -> None:
    """The first and the last value of a range are accepted, and so is every form of master."""
    RunSettings(**settings)
