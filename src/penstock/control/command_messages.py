"""Command messages: commands as protobuf, the messages of `control.proto`."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

import msgspec
from google.protobuf.message import DecodeError

from penstock.control.commands import (
    AT_ONCE,
    NOT_UNDERSTOOD,
    Apply,
    Command,
    CommandError,
    Target,
    short_reason,
)
from penstock.control.control_pb2 import Command as CommandMessage  # type: ignore[attr-defined]  # generated code, without stubs

__all__ = ["command_of_message", "message_of_command"]


def command_of_message(data: bytes) -> Command:
    """Decode the command of a protobuf message. Raises CommandError when it is not a command."""
    try:
        message = CommandMessage.FromString(data)
    except DecodeError as e:
        raise CommandError(f"it is not a penstock.Command: {e}") from None
    try:
        payload = msgspec.json.decode(message.payload or b"null", type=msgspec.Raw)
        target = _target(message.target)
    except NOT_UNDERSTOOD as e:
        raise CommandError(f"payload and keys must be JSON: {short_reason(e)}", message.id) from None
    if message.apply not in ("", *get_args(Apply)):
        raise CommandError(
            f"apply must be one of {', '.join(get_args(Apply))}, not {message.apply!r}", message.id
        )
    return Command(
        id=message.id,
        kind=message.kind,
        target=target,
        version=message.version if message.HasField("version") else None,
        issued_by=message.issued_by,
        issued_at=_time(message, "issued_at"),
        effective_at=_time(message, "effective_at"),
        expires_at=_time(message, "expires_at"),
        apply=message.apply or AT_ONCE,
        payload=payload,
    )


def _target(message: Any) -> Target:
    keys = [msgspec.json.decode(key) for key in message.keys]
    if len(keys) == 1:
        return Target(message.step, key=keys[0], all=message.all)
    return Target(message.step, keys=keys or None, all=message.all)


def _time(message: Any, name: str) -> dt.datetime | None:
    if not message.HasField(name):
        return None
    try:
        time: dt.datetime = getattr(message, name).ToDatetime(tzinfo=dt.UTC)
    except (ValueError, OverflowError) as e:
        raise CommandError(f"{name} is not a time: {e}", message.id) from None
    return time


def message_of_command(command: Command) -> bytes:
    """Encode a command as a protobuf message."""
    target = command.target
    keys = [target.key] if target.key is not None else list(target.keys or ())
    message = CommandMessage(
        id=command.id, kind=command.kind, issued_by=command.issued_by, payload=bytes(command.payload).decode()
    )
    message.target.step = target.step
    message.target.all = target.all
    message.target.keys.extend(msgspec.json.encode(key).decode() for key in keys)
    if command.apply != AT_ONCE:
        message.apply = command.apply
    if command.version is not None:
        message.version = command.version
    for name in ("issued_at", "effective_at", "expires_at"):
        time = getattr(command, name)
        if time is not None:
            getattr(message, name).FromDatetime(time)
    return bytes(message.SerializeToString(deterministic=True))
