"""The control entry: what somebody outside of a job must know to send it a command. Kept in the checkpoint."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.bindings import Binding, FilesBinding, redacted
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.payloads import Payload, payloads_of
from penstock.operators.accepting import AcceptedStep, Accepting

__all__ = ["CONTROL_FILE", "ControlEntry", "StepEntry", "control_entry", "place_uri", "read_control_entry"]

CONTROL_FILE: Final = "control.json"


class StepEntry(msgspec.Struct, frozen=True):
    """A step: the type of its keys, its states and settings, and the commands that it takes, with their scopes.

    `payloads` says what the payloads of the commands are, by the names of `payload_key`, and `defaults` what its
    settings are where nobody has set them, as plain values.
    """

    key_type: str
    kinds: dict[str, tuple[str, ...]]
    states: tuple[str, ...]
    settings: tuple[str, ...]
    payloads: dict[str, Payload] = {}
    defaults: dict[str, Any] = {}


class ControlEntry(msgspec.Struct, frozen=True):
    """A job's entry: where its commands come from (secrets are masked), and its steps. Without a place: no commands."""

    job: str
    commands: str
    steps: dict[str, StepEntry]


def control_entry(job: str, accepting: Accepting | None, binding: Binding | None) -> ControlEntry:
    """The entry of a job that is about to run."""
    if accepting is None or binding is None:
        return ControlEntry(job, "", {})
    return ControlEntry(
        job, place_uri(binding), {name: _step_entry(step) for name, step in accepting.steps.items()}
    )


def read_control_entry(checkpoint: Path) -> ControlEntry:
    """The entry in a checkpoint. Raises CheckpointError when there is none, or it cannot be read."""
    found: ControlEntry = Checkpoint(checkpoint).load(CONTROL_FILE, ControlEntry)
    return found


def place_uri(binding: Binding) -> str:
    """The URI of a binding with secrets masked, which means the same in another working folder."""
    if isinstance(binding, FilesBinding):
        return f"{binding.format}:{urllib.parse.quote(binding.directory)}"
    return redacted(binding.uri)


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
    )
