"""The command lines that the dashboard shows are valid."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli import app
from penstock.server.dashboard import cli_equivalents
from penstock.server.dashboard.cli_equivalents import SentControl

SHOWN = {
    cli_equivalents.list_jobs(): {"everything": True},
    cli_equivalents.list_models("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.show_job("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.show_metrics("rooms-1"): {"job": "rooms-1", "watch": True},
    cli_equivalents.submit_job("rooms", {"name": "my rooms", "parallelism": 4}): {
        "definition": "rooms",
        "name": "my rooms",
        "parallelism": 4,
    },
    cli_equivalents.pause_job("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.resume_job("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.cancel_job("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.stop_job("rooms-1", savepoint=False, drain=False): {
        "with_savepoint": False,
        "drain": False,
    },
    cli_equivalents.stop_job("rooms-1", savepoint=True, drain=True): {"with_savepoint": True, "drain": True},
    cli_equivalents.rescale_job("rooms-1", 8): {"job": "rooms-1", "parallelism": 8},
    cli_equivalents.take_savepoint("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.show_events(None): {"job": None},
    cli_equivalents.show_events("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.show_commands("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.submit_job("rooms", {"from_savepoint": "sp-1"}): {"from_savepoint": "sp-1"},
    cli_equivalents.list_states("rooms-1"): {"job": "rooms-1"},
    cli_equivalents.show_key("rooms-1", "warm up", '[1, "a"]'): {"step": "warm up", "key": '[1, "a"]'},
    cli_equivalents.dump_state("/a/checkpoint", "csv"): {"job": "/a/checkpoint", "to": "FOLDER"},
    cli_equivalents.list_savepoints("rooms-1"): {"job": "rooms-1", "show": True},
    cli_equivalents.delete_savepoint("rooms-1", "sp-1"): {"job": "rooms-1", "dispose": "sp-1"},
    cli_equivalents.follow_log("rooms-1", 2, follow=True): {"run": 2, "follow": True},
    cli_equivalents.follow_log("rooms-1", None, follow=False): {"run": None, "follow": False},
    cli_equivalents.send_control("rooms-1", SentControl("trace", "*")): {"kind": "trace", "target": "*"},
    cli_equivalents.send_control(
        "rooms-1", SentControl("set", "thermostat/5", '{"desired": "it\'s 21.5"}', 3, 60)
    ): {
        "job": "rooms-1",
        "kind": "set",
        "target": "thermostat/5",
        "payload": '{"desired": "it\'s 21.5"}',
        "version": 3,
        "expires_in": 60.0,
    },
}


@pytest.mark.parametrize("line", SHOWN)
def test_each_is_understood(line: str) -> None:
    """The command line's own parser accepts each, with the values that the dashboard means."""
    program, *words = shlex.split(line)
    assert program == "penstock"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context(command.name, words)
    for name, value in SHOWN[line].items():
        assert context.params[name] == value


def test_all_of_them_are_here() -> None:
    """So a new command line cannot go untested."""
    functions = {name for name in cli_equivalents.__all__ if name.islower()}
    source = Path(__file__).read_text()
    assert {name for name in functions if f"cli_equivalents.{name}(" not in source} == set()
