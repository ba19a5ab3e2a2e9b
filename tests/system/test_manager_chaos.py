"""Managers, drivers and Python workers are killed at random: no job is lost or doubled, outputs are exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from manager_chaos import Victim, run_chaos, write_results
from postgres_server import PostgresServer
from reliability import noting

SEED = 7
VICTIMS: dict[Victim, int] = {"manager": 48, "worker": 32, "driver": 24}


def test_a_kill(postgres: PostgresServer, tmp_path: Path) -> None:
    """A manager is killed under load and commands; no new run starts for that."""
    victims: list[Victim] = ["manager"]
    results = run_chaos(tmp_path, postgres.new_schema(), 1, SEED, victims)
    assert results["kills"]["all"] == 1
    assert results["runs"] == 1


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_hundred_kills(postgres: PostgresServer, tmp_path: Path) -> None:
    """Three jobs run; the measurements are written down."""
    victims = [victim for victim, count in VICTIMS.items() for _ in range(count)]
    random.Random(SEED).shuffle(victims)
    with noting("job manager", "-k test_a_hundred_kills", str(SEED)) as injected:
        results = run_chaos(tmp_path, postgres.new_schema(), 3, SEED, victims, injected)
    write_results(results, "make chaos ARGS='-k test_a_hundred_kills'")
    assert results["kills"]["all"] >= 100
