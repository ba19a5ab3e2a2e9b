"""The examples in the docstrings of windows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import penstock.windows

MODULES = [f"penstock.windows.{module.name}" for module in pkgutil.iter_modules(penstock.windows.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    """As they stand."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
