"""`penstock serve` with the drivers of `stored_driver`, and short leases, so that tests wait less."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import stored_driver

from penstock.cli import app
from penstock.server import server
from penstock.server.manager import manager

LEASE_S = 3.0
RUN_LEASE_S = 5.0


class QuickManager(manager.Manager):
    """A manager with these leases."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        *others, settings = arguments
        super().__init__(
            *others, dataclasses.replace(settings, lease_s=LEASE_S, run_lease_s=RUN_LEASE_S), **more
        )


if __name__ == "__main__":
    manager._DRIVER = (sys.executable, stored_driver.__file__)  # type: ignore[misc]
    server.Manager = QuickManager  # type: ignore[misc]
    app(["serve", *sys.argv[1:]])
