"""Policy sender: send the commands of models' policies to where the job reads its commands, as a person would."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.commands.command_catalog import CommandCatalog
from penstock.commands.command_sender import command_binding, send_command
from penstock.control.commands import Command
from penstock.errors import PenstockError

__all__ = ["PolicySender"]

_RETRY_S: Final = 10.0


class PolicySender:
    """Sends commands in the thread that runs the job, since a broker may take its time; until then they wait here.

    One that is lost in a crash is decided upon again with the same id, so it counts once. `uri` is where the run reads
    commands, None for the place in its catalog; `on_note` gets a sentence about each command.
    """

    def __init__(self, catalog: CommandCatalog, uri: str | None, on_note: Callable[[str], None]) -> None:
        self._catalog: Final = catalog
        self._uri: Final = uri
        self._on_note: Final = on_note
        self._waiting: Final[queue.SimpleQueue[Command]] = queue.SimpleQueue()
        self._unsent: Command | None = None
        self._retry_at_s = 0.0

    def enqueue(self, commands: Iterable[Command]) -> None:
        """Queue commands. Any thread may call this."""
        for command in commands:
            self._waiting.put(command)

    def step(self) -> None:
        """Send the waiting commands. One that cannot be sent is tried again."""
        while self._unsent is not None or not self._waiting.empty():
            if self._unsent is None:
                self._unsent = self._waiting.get()
            elif time.monotonic() < self._retry_at_s:
                return
            command = self._unsent
            what = _said(command)
            try:
                send_command(command, command_binding(self._catalog, self._uri))
            except PenstockError as e:
                if not self._retry_at_s:
                    self._on_note(f"The policy of {what}, and its command cannot be sent: {e}")
                self._retry_at_s = time.monotonic() + _RETRY_S
                return
            self._unsent, self._retry_at_s = None, 0.0
            self._on_note(f"The policy of {what}.")


def _said(command: Command) -> str:
    payload = msgspec.json.decode(command.payload)
    does = {"promote-model": "promotes", "canary-model": "makes a canary of", "roll-back-model": "rolls back"}
    return (
        f"the model {payload['model']!r} of step {command.target.step!r} {does[command.kind]} version "
        f"{payload['version']!r}: {payload['reason']}"
    )
