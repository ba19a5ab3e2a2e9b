"""The command catalog: the facts about a job that a sender of commands needs. Kept in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.bindings.secrets import public_uri
from penstock.bindings.types import Binding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.commands.payloads import Payload, payloads_of
from penstock.engine.command_validation import AcceptedStep, Accepting

__all__ = ["CONTROL_FILE", "CommandCatalog", "StepEntry", "command_catalog", "read_command_catalog"]

CONTROL_FILE: Final = "control.json"


class StepEntry(msgspec.Struct, frozen=True):
    """A step: the type of its keys, its states and settings, and the commands that it takes, with their scopes.

    `models` are those that it declares. `payloads` describes the payloads of the commands, by the names of
    `payload_key`; `defaults` has the defaults of its settings, as JSON values.
    """

    key_type: str
    kinds: dict[str, tuple[str, ...]]
    states: tuple[str, ...]
    settings: tuple[str, ...]
    payloads: dict[str, Payload] = {}
    defaults: dict[str, Any] = {}
    models: tuple[str, ...] = ()


class CommandCatalog(msgspec.Struct, frozen=True):
    """The catalog of a job: its steps, and the place from which it reads commands (secrets masked), if it takes any."""

    job: str
    commands: str
    steps: dict[str, StepEntry]


def command_catalog(job: str, accepting: Accepting | None, binding: Binding | None) -> CommandCatalog:
    """Return the catalog of a job that is about to run."""
    if accepting is None or binding is None:
        return CommandCatalog(job, "", {})
    return CommandCatalog(
        job, public_uri(binding), {name: _step_entry(step) for name, step in accepting.steps.items()}
    )


def read_command_catalog(checkpoint: Path) -> CommandCatalog:
    """Read the catalog in a checkpoint. Raises CheckpointError when it is missing or cannot be read."""
    found: CommandCatalog = Checkpoint(checkpoint).load(CONTROL_FILE, CommandCatalog)
    return found


def _step_entry(step: AcceptedStep) -> StepEntry:
    return StepEntry(
        str(step.key_type),
        step.kinds,
        tuple(step.states),
        tuple(step.settings),
        payloads_of(step),
        {
            name: msgspec.to_builtins(one.default, str_keys=True, enc_hook=str)
            for name, one in step.settings.items()
        },
        tuple(step.models),
    )
