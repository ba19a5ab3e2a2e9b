"""The command group: commands of `penstock`, each loaded when it is asked for.

All of them import most of penstock, which takes half a second. The help and the completion of names load them all.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

__all__ = ["CommandGroup"]

_PLACES: Final = {
    "init": "init:init",
    "run": "run:run",
    "sql": "run:sql",
    "demo": "demo:demo",
    "submit": "submit:submit",
    "list": "server_jobs:list_jobs",
    "info": "server_jobs:info",
    "cancel": "server_jobs:cancel",
    "pause": "server_jobs:pause",
    "resume": "server_jobs:resume",
    "logs": "server_jobs:logs",
    "savepoint": "savepoint:savepoint",
    "stop": "stop:stop",
    "rescale": "rescale:rescale",
    "advise": "advise:advise",
    "query": "query:query",
    "metrics": "metrics:metrics",
    "events": "metrics:events",
    "control": "control:control_app",
    "state": "state:state_app",
    "models": "models:models_app",
    "serve": "serve:serve",
    "token": "serve:token",
    "doctor": "doctor:doctor",
}
"""The module and the name in it of each command, in the order of the help."""


class _Commands(UserDict[str, Any]):
    """Typer's commands by name; one that has only its place is loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            found = self[name] = _load(name, found)
        return found


def _load(name: str, place: str) -> Any:
    """Load a command, or a group of commands."""
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(f"penstock.cli.{module}"), attribute)
    part = typer.Typer()
    if isinstance(found, typer.Typer):
        part.add_typer(found, name=name)
    else:
        part.command(name)(found)
    return get_group(part).commands[name]


class CommandGroup(TyperGroup):
    """The group of all commands; those that are not registered are loaded when they are asked for."""

    def __init__(self, *, commands: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.commands = _Commands(_PLACES | dict(commands or {}))
