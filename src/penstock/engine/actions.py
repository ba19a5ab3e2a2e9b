"""Actions: the effect of a command on one key, or on the whole step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.control.admitted_commands import AdmittedCommand, decode_commands, encode_commands
from penstock.control.commands import Command
from penstock.engine.command_validation import payload_decoder, payload_of
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.step import MAIN, StepCore
from penstock.operators.functions import CommandContext

__all__ = ["Action", "StandingCommands", "action_of", "standing_applier"]

Action = Callable[[CommandContext], Iterable[Any] | None]

_MAX_STANDING: Final = 1000


def action_of(command: Command, instance: FunctionInstance) -> Action:
    """Return the action that carries out an admitted command. Its payload is decoded only once."""
    core = instance.core
    handler = core.handlers.get(command.kind)
    if handler is not None:
        payload = payload_of(command, handler.payload_type)
        method = getattr(instance.function, handler.method)
        return lambda ctx: method(payload, ctx)
    values = _values(command, core)
    targets = instance.shared_states if command.target.scope == "step" else instance.states

    def set_values(_: CommandContext) -> None:
        for name, value in values.items():
            targets[name].set(value)

    return set_values


def _values(command: Command, core: StepCore) -> dict[str, Any]:
    raw = payload_decoder(dict[str, msgspec.Raw]).decode(command.payload)
    declared: Any = core.shared if command.target.scope == "step" else core.states
    return {name: declared[name].value_of(value) for name, value in raw.items()}


class _Unheard:
    """An output that discards its records."""

    def side_output(self, name: str, record: Any) -> None:
        """Discard the record."""


def standing_applier(
    standing: StandingCommands,
    instance: FunctionInstance,
    failed: Callable[[AdmittedCommand, Exception], None],
) -> Callable[[int], None] | None:
    """Return a function that applies the standing commands to the current key, which is new; None without any.

    The function takes the key group. It discards records that handlers emit, since the command emitted its records when
    it arrived; a new key only catches up. If a handler raises, its changes are undone and `failed` is called.
    """
    if not standing.commands:
        return None
    outputs = frozenset(instance.core.outputs) - {MAIN}
    actions = [(admitted, action_of(admitted.command, instance)) for admitted in standing.commands.values()]

    def apply_standing(key_group: int) -> None:
        cursor = instance.cursor
        for admitted, action in actions:
            context = CommandContext(cursor, outputs, admitted.command)
            context.enter(admitted.place.stream, _Unheard())
            context.key_group = key_group
            cursor.time = admitted.command.effective_at
            try:
                instance.note_version(admitted.command.version)
                for _ in action(context) or ():
                    pass
                cursor.undo.clear()
            except Exception as e:  # user code may raise anything
                cursor.take_back()
                failed(admitted, e)
        cursor.time = None

    return apply_standing


@dataclass
class StandingCommands:
    """The commands to all keys that also apply to keys that appear later: the newest of each kind.

    For `set`, the newest is kept for each state. For commands that are effective at an event time, one is kept for each
    time.
    """

    commands: dict[tuple[str, str, str], AdmittedCommand]
    changed: bool = False

    @classmethod
    def of(cls, stored: bytes) -> StandingCommands:
        """Decode the stored form."""
        commands = (
            [admitted for admitted in decode_commands(stored) if isinstance(admitted, AdmittedCommand)]
            if stored
            else []
        )
        return cls({_identity(admitted): admitted for admitted in commands})

    def dump(self) -> bytes:
        """Return the stored form."""
        return encode_commands(list(self.commands.values())) if self.commands else b""

    def copy(self) -> StandingCommands:
        """Return a copy, which can be changed independently."""
        return StandingCommands(dict(self.commands))

    def add(self, admitted: AdmittedCommand, core: StepCore) -> bool:
        """Keep a command to all keys, and return True, unless its handler excludes new keys."""
        handler = core.handlers.get(admitted.command.kind)
        if handler is not None and not handler.new_keys:
            return False
        self.changed = True
        for part in _split_set(admitted) if handler is None else [admitted]:
            identity = _identity(part)
            # The newest is last, so that new keys receive commands of several kinds in the order of their cuts.
            self.commands.pop(identity, None)
            self.commands[identity] = part
        while len(self.commands) > _MAX_STANDING:
            del self.commands[next(iter(self.commands))]
        return True


def _split_set(admitted: AdmittedCommand) -> list[AdmittedCommand]:
    """Split a `set` of several states into one for each state."""
    values = msgspec.json.decode(admitted.command.payload, type=dict[str, msgspec.Raw])
    if len(values) == 1:
        return [admitted]
    return [
        msgspec.structs.replace(
            admitted,
            command=msgspec.structs.replace(
                admitted.command, payload=msgspec.Raw(msgspec.json.encode({name: value}))
            ),
        )
        for name, value in values.items()
    ]


def _identity(admitted: AdmittedCommand) -> tuple[str, str, str]:
    command = admitted.command
    state = ""
    if command.kind == "set":
        state = next(iter(msgspec.json.decode(command.payload, type=dict[str, msgspec.Raw])))
    return command.kind, state, "" if command.effective_at is None else command.effective_at.isoformat()
