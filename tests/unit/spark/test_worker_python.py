"""The interpreter of Spark's workers: the one that the settings name, or the driver's own."""

from __future__ import annotations

import sys

import pytest

from penstock.spark.startup.jvm_start import JvmStart, jvm_environment


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def python_of(master: str, **more: str) -> str:
    spark = {f"spark.{name.replace('_', '.')}": value for name, value in more.items()}
    return jvm_environment(JvmStart(master, more=spark))["PYSPARK_PYTHON"]


def test_a_setting_names_the_interpreter_of_the_workers() -> None:
    """On YARN it is in an archive that containers unpack."""
    packed = "./environment/bin/python"
    assert python_of("yarn", pyspark_python=packed) == packed
    assert python_of("local[2]", pyspark_python=packed) == packed


def test_without_it_workers_run_on_that_of_the_driver() -> None:
    """On other machines it must be at the same path."""
    assert python_of("spark://host:7077", executor_cores="2") == sys.executable
