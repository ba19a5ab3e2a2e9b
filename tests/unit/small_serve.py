"""`penstock serve` with the drivers of `small_driver`, so that tests of several servers need no Spark."""

from __future__ import annotations

import sys

import small_driver

from penstock.cli import app
from penstock.server.manager import manager

if __name__ == "__main__":
    manager._DRIVER = (sys.executable, small_driver.__file__)  # type: ignore[misc]
    app(["serve", *sys.argv[1:]])
