"""The commands that the dashboard shows are those that the command line takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli import app
from penstock.server.dashboard import same_commands, same_state_commands
from penstock.server.dashboard.same_commands import SentControl

SHOWN = {
    same_commands.list_jobs(): {"everything": True},
    same_commands.show_job("rooms-1"): {"job": "rooms-1"},
    same_commands.show_metrics("rooms-1"): {"job": "rooms-1", "watch": True},
    same_commands.submit_job("rooms", {"name": "my rooms", "parallelism": 4}): {
        "job_file": "rooms",
        "detached": True,
        "name": "my rooms",
        "parallelism": 4,
    },
    same_commands.pause_job("rooms-1"): {"job": "rooms-1"},
    same_commands.resume_job("rooms-1"): {"job": "rooms-1"},
    same_commands.cancel_job("rooms-1"): {"job": "rooms-1"},
    same_commands.stop_job("rooms-1", savepoint=False, drain=False): {
        "with_savepoint": False,
        "drain": False,
    },
    same_commands.stop_job("rooms-1", savepoint=True, drain=True): {"with_savepoint": True, "drain": True},
    same_commands.rescale_job("rooms-1", 8): {"job": "rooms-1", "parallelism": 8},
    same_commands.take_savepoint("rooms-1"): {"job": "rooms-1"},
    same_commands.show_events(None): {"job": None},
    same_commands.show_events("rooms-1"): {"job": "rooms-1"},
    same_commands.show_commands("rooms-1"): {"job": "rooms-1"},
    same_commands.submit_job("rooms", {"from_savepoint": "sp-1"}): {"from_savepoint": "sp-1"},
    same_state_commands.list_states("rooms-1"): {"job": "rooms-1"},
    same_state_commands.show_key("rooms-1", "warm up", '[1, "a"]'): {"step": "warm up", "key": '[1, "a"]'},
    same_state_commands.dump_state("/a/checkpoint", "csv"): {"job": "/a/checkpoint", "to": "FOLDER"},
    same_state_commands.list_savepoints("rooms-1"): {"job": "rooms-1", "show": True},
    same_state_commands.delete_savepoint("rooms-1", "sp-1"): {"job": "rooms-1", "dispose": "sp-1"},
    same_state_commands.follow_log("rooms-1", 2, follow=True): {"run": 2, "follow": True},
    same_state_commands.follow_log("rooms-1", None, follow=False): {"run": None, "follow": False},
    same_commands.send_control("rooms-1", SentControl("trace", "*")): {"kind": "trace", "target": "*"},
    same_commands.send_control(
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
    """By the parser of the command line itself, with the values that the dashboard means."""
    program, *words = shlex.split(line)
    assert program == "penstock"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context(command.name, words)
    for name, value in SHOWN[line].items():
        assert context.params[name] == value


def test_all_of_them_are_here() -> None:
    """A text that is added is tested, too."""
    functions = {name for name in same_commands.__all__ if name.islower()}
    source = Path(__file__).read_text()
    assert {name for name in functions if f"same_commands.{name}(" not in source} == set()
