"""The jars of servers for tests, fetched once into the cache."""

from __future__ import annotations

from pathlib import Path

from penstock.machine.cache import cache_folder
from penstock.machine.jars import Jar, resolve

_TABLE = Path(__file__).with_name("server_jars.txt")


def server_jars(name: str) -> list[Path]:
    """Return the jars of one set of the table."""
    rows = [line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
    return resolve([Jar(*row[1:]) for row in rows if row[0] == name], cache_folder() / f"test-{name}")
