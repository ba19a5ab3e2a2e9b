"""`penstock serve` with the drivers of `stored_driver`, and leases that end sooner, so that tests wait less."""

from __future__ import annotations

import dataclasses
import sys

import stored_driver

from penstock.cli import app
from penstock.server import server
from penstock.server.manager import manager

LEASE_S = 2.0
RUN_LEASE_S = 2.5

if __name__ == "__main__":
    manager._DRIVER = (sys.executable, stored_driver.__file__)  # type: ignore[misc]
    settings = dataclasses.replace(manager.ManagerSettings(), lease_s=LEASE_S, run_lease_s=RUN_LEASE_S)
    server.ServeSettings.__dataclass_fields__["manager"].default_factory = lambda: settings
    app(["serve", *sys.argv[1:]])
