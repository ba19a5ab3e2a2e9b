"""The demo job of a new server: rooms reach the desired temperature and stay there."""

from __future__ import annotations

import itertools
import json
import sys

from penstock.jobs.job_loader import load_job
from penstock.server.demo_job import demo_definition
from penstock.streams.graph import COMMANDS
from penstock.testing.batch_runner import BatchRunner


def test_rooms_are_kept_warm_and_obey() -> None:
    """After two minutes heaters switch at the band's edges; a command moves the band of its room."""
    definition = demo_definition()
    loaded = load_job(str(definition.file))
    running = BatchRunner(loaded.job, parallelism=2)
    tick = sys.modules["warm_rooms"].Tick
    number = 0

    def minute() -> dict[int, list[tuple[str, float]]]:
        nonlocal number
        ticks = [("rate", [tick(n) for n in range(number, number + 12_000)])]
        number += 12_000
        told: dict[int, list[tuple[str, float]]] = {}
        for command in running.run({"ticks": ticks}).output("heaters"):
            told.setdefault(command.room, []).append((command.command.value, command.temperature))
        return told

    minute()
    settled = minute()
    assert set(settled) == set(range(1, 21))
    for commands in settled.values():
        assert len(commands) > 4
        words = [word for word, _ in commands]
        assert all(one != other for one, other in itertools.pairwise(words))
        assert all(19.0 < degrees < 23.0 for _, degrees in commands)
    command = {
        "id": "warmer",
        "kind": "set",
        "target": {"step": "thermostat", "key": 5},
        "payload": {"desired": 26.0},
    }
    running.run({COMMANDS: [("c", [json.dumps(command).encode()])]})
    minute()
    after = minute()
    assert min(degrees for _, degrees in after[5]) > 24
    assert max(degrees for _, degrees in after[6]) < 23
