"""The early JVM: which runs get one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from penstock.jobs import early_jvm as early
from penstock.jobs.settings import RunSettings
from penstock.spark.startup.jvm_start import JvmStart

SETTINGS = RunSettings(checkpoint="rooms", master="local[2]", spark_settings={"spark.ui.port": "4050"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[JvmStart]:
    """The JVMs that would have been started."""
    found: list[JvmStart] = []

    def start(of: JvmStart) -> Any:
        found.append(of)
        return nullcontext()

    monkeypatch.setattr(early, "jvm_ahead", start)
    return found


def begin(**changed: Any) -> None:
    names = ("master", "checkpoint", "memory_mb", "checkpoint_interval_ms", "spark_settings")
    with early.early_jvm(**{name: getattr(SETTINGS, name) for name in names} | changed):
        pass


@pytest.mark.parametrize("changed", [{}, {"checkpoint": None}, {"checkpoint_interval_ms": 5000}])
def test_a_run_gets_the_jvm_of_its_settings(started: list[JvmStart], changed: dict[str, Any]) -> None:
    """In real time it is a lean one, on any machine."""
    begin(**changed)
    assert [(of.master, dict(of.more)) for of in started] == [("local[2]", {"spark.ui.port": "4050"})]
    assert started[0].is_lean or not changed.get("checkpoint_interval_ms")


@pytest.mark.parametrize("changed", [{"memory_mb": 2000}, {"checkpoint": "s3://bucket/rooms"}])
def test_a_run_whose_jvm_depends_on_more_gets_none(started: list[JvmStart], changed: dict[str, Any]) -> None:
    """The share of memory depends on the checkpoint's parallelism, and a store needs jars."""
    begin(**changed)
    assert started == []
