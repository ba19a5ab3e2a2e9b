"""A manager as a program: it manages a home and a folder of definitions until it is killed."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store


def main() -> None:
    """Run the manager."""
    logging.basicConfig(level=logging.INFO)
    home = ServerDirectory(Path(sys.argv[1]))
    store = Store.open(sqlite_url(home.store))
    settings = ManagerSettings(lease_s=3.0)
    Manager(store, Catalog([Path(sys.argv[2])]), home, settings).run(threading.Event())


if __name__ == "__main__":
    main()
