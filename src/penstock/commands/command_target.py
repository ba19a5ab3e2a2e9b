"""Command targets: parse the target of a command, and check it against the command catalog of the job."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.commands.command_catalog import CommandCatalog, StepEntry
from penstock.control.command_decoder import check
from penstock.control.commands import Command, CommandError, Target
from penstock.errors import CommandRefusedError

__all__ = ["TARGET_FORMS", "check_known", "parse_target"]

TARGET_FORMS: Final = "*, STEP, STEP/*, STEP/KEY or STEP/KEY,KEY"

_INT64: Final = range(-(1 << 63), 1 << 63)


def parse_target(text: str, keys: str | None, entry: CommandCatalog) -> Target:
    """Parse a target; `keys` is a JSON array of keys, if the text is a step alone.

    The command catalog gives the type of the keys. Raises CommandRefusedError for a step that the job does not have,
    and for keys of another type.
    """
    name, slash, rest = text.partition("/")
    if name == "*" and not slash:
        if keys is not None:
            raise CommandRefusedError(
                f"The target '*' is the whole job, which has no keys. Name a step, one of {_format_names(entry.steps)}."
            )
        return Target()
    step = entry.steps.get(name)
    if step is None:
        raise CommandRefusedError(
            f"The target {text!r} names no step of the job {entry.job!r}, which has {_format_names(entry.steps)}. "
            f"A target is {TARGET_FORMS}."
        )
    if keys is not None:
        if slash:
            raise CommandRefusedError(
                f"The target {text!r} has keys, and --keys gives others. Use one of them."
            )
        return _with_keys(name, _keys_of_json(keys, name, step.key_type))
    if not slash:
        return Target(name)
    if rest == "*":
        return Target(name, all=True)
    return _with_keys(name, _keys_of_text(rest, name, step.key_type))


def check_known(command: Command, entry: CommandCatalog) -> None:
    """Raise CommandRefusedError for a malformed command, or one of a kind and scope that no step takes."""
    try:
        check(command)
    except CommandError as e:
        raise CommandRefusedError(f"The command was not sent: {e}.") from None
    target = command.target
    if target.step:
        takers: list[StepEntry] = [entry.steps[target.step]]
        who = f"The step {target.step!r}"
    else:
        takers, who = list(entry.steps.values()), f"The job {entry.job!r}"
    scopes = {scope: None for step in takers for scope in step.kinds.get(command.kind, ())}
    if not scopes:
        kinds = {kind: None for step in takers for kind in step.kinds}
        raise CommandRefusedError(
            f"{who} takes no command {command.kind!r}; it takes {_format_names(kinds)}."
        )
    if target.scope not in scopes:
        forms = ", ".join(_form(scope, target.step or _taker(command.kind, entry)) for scope in scopes)
        raise CommandRefusedError(
            f"{who} takes no command {command.kind!r} for the target {str(target)!r}; it takes it for {forms}."
        )


def _taker(kind: str, entry: CommandCatalog) -> str:
    takers = [name for name, step in entry.steps.items() if kind in step.kinds]
    return takers[0] if len(takers) == 1 else "STEP"


def _form(scope: str, step: str) -> str:
    return {
        "job": "* (the whole job)",
        "step": f"{step} (the step)",
        "all": f"{step}/* (all keys)",
        "key": f"{step}/KEY",
        "keys": f"{step}/KEY,KEY",
    }.get(scope, scope)


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _with_keys(step: str, keys: Sequence[Any]) -> Target:
    return Target(step, key=keys[0]) if len(keys) == 1 else Target(step, keys=list(keys))


def _keys_of_text(text: str, step: str, key_type: str) -> list[Any]:
    if key_type.startswith("struct<"):
        raise CommandRefusedError(
            f"The keys of the step {step!r} have several fields ({key_type}). Name the step alone, and give its keys "
            """as JSON, such as --keys '[[1, "b"]]'."""
        )
    parts = text.split(",")
    if not all(parts):
        raise CommandRefusedError(
            f"The target '{step}/{text}' has an empty key. Write {step}/* for all keys; write unusual text as JSON, "
            """such as --keys '["", "a,b", "*"]'."""
        )
    return [_check_key(int(part) if _is_integer(part, key_type) else part, step, key_type) for part in parts]


def _is_integer(text: str, key_type: str) -> bool:
    return key_type == "int64" and re.fullmatch(r"[+-]?[0-9]{1,20}", text) is not None


def _keys_of_json(text: str, step: str, key_type: str) -> list[Any]:
    try:
        keys = msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError as e:
        raise CommandRefusedError(
            f"--keys {text!r} is not a JSON array of keys: {e}. An example is --keys '[1, 2]'."
        ) from None
    if not keys:
        raise CommandRefusedError(f"--keys is an empty array. Leave it out, and write {step}/* for all keys.")
    return [_check_key(key, step, key_type) for key in keys]


def _check_key(key: Any, step: str, key_type: str) -> Any:
    """Return the key if it has the type of the step's keys."""
    if key_type.startswith("struct<"):
        fits = isinstance(key, list)
    else:
        name = re.split(r"[\[(]", key_type)[0]
        fits = _FITS.get(name, lambda _: True)(key)
    if not fits:
        shown = msgspec.json.encode(key).decode()
        raise CommandRefusedError(
            f"The key {shown} does not have the key type of the step {step!r}, {key_type}."
        )
    return key


def _converts(key: Any, python_type: Any) -> bool:
    try:
        msgspec.convert(key, python_type)
    except msgspec.ValidationError:
        return False
    return True


_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "int64": lambda key: type(key) is int and key in _INT64,
    "string": lambda key: isinstance(key, str),
    "binary": lambda key: _converts(key, bytes),
    "date32": lambda key: _converts(key, dt.date),
    "timestamp": lambda key: _converts(key, dt.datetime),
}
"""Return whether a key in JSON has a type. The job itself checks types that are missing here."""
