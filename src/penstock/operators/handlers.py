"""Command handlers: methods of a process function that carry out one kind of command."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock.errors import JobDefinitionError
from penstock.records.schemas import record_type

__all__ = ["BUILT_IN_KINDS", "Handler", "declared_handlers", "on_command"]

F = TypeVar("F", bound=Callable[..., Any])
HandlerScope = Literal["key", "step"]

BUILT_IN_KINDS: Final = ("set", "reload-config", "clear-cache", "pause", "resume", "trace", "dump-state")
"""The kinds of command that every step accepts."""

_MARK: Final = "__penstock_command__"


@dataclass(frozen=True)
class _Mark:
    kind: str
    scope: HandlerScope
    new_keys: bool


@dataclass(frozen=True)
class Handler:
    """A declared handler: the method's name, the kind and payload that it takes, and its scope."""

    kind: str
    method: str
    scope: HandlerScope
    new_keys: bool
    payload_type: Any


def on_command(kind: str, *, scope: HandlerScope = "key", new_keys: bool = True) -> Callable[[F], F]:
    """Mark a method of a process function as the handler of one kind of command.

    The method takes the payload and a context. The annotation of the payload is its schema: a dataclass, a msgspec
    Struct, a Python type, or None if the command has no payload. The method may yield records, like `process_record`.

    >>> class Limits(ProcessFunction):
    ...     limit = ValueState(float)
    ...     @on_command("set-limit")
    ...     def set_limit(self, limit: float, ctx: CommandContext) -> None:
    ...         self.limit.set(limit)

    Args:
        kind: the kind of the commands.
        scope: "key": called for each key that the command names, or for every key of the step. "step": called once in
            each task of the step, for commands to the step; `ctx.keys()` iterates over all keys.
        new_keys: only for the scope "key": whether a key that is first seen after a command to all keys receives the
            newest such command of this kind before its first record.

    Raises JobDefinitionError for a built-in kind, and for a scope that does not exist.

    """
    if not isinstance(kind, str) or not kind:
        raise JobDefinitionError(f"{kind!r} is not a kind of command; pass its name as a string.")
    if kind in BUILT_IN_KINDS:
        raise JobDefinitionError(
            f"The kind {kind!r} is one of penstock's own; choose another name for your command."
        )
    if scope not in ("key", "step"):
        raise JobDefinitionError(f"A handler's scope is 'key' or 'step', not {scope!r}.")

    def mark(method: F) -> F:
        setattr(method, _MARK, _Mark(kind, scope, new_keys))
        return method

    return mark


def declared_handlers(owner: type) -> dict[str, Handler]:
    """Return the handlers that a class declares, by kind.

    Raises JobDefinitionError when two handlers take the same kind, or one cannot be used.
    """
    found: dict[str, Handler] = {}
    for name in dict.fromkeys(name for cls in reversed(owner.__mro__) for name in vars(cls)):
        method = getattr(owner, name, None)
        mark = getattr(method, _MARK, None)
        if not isinstance(mark, _Mark):
            continue
        if mark.kind in found:
            other = found[mark.kind].method
            raise JobDefinitionError(
                f"{owner.__name__}.{other} and {owner.__name__}.{name} both handle commands of the kind {mark.kind!r}."
            )
        payload_type = _payload_type(owner, name, method)
        found[mark.kind] = Handler(mark.kind, name, mark.scope, mark.new_keys, payload_type)
    return found


def _payload_type(owner: type, name: str, method: Any) -> Any:
    parameters = list(inspect.signature(method).parameters)
    if len(parameters) != 3:
        raise JobDefinitionError(
            f"{owner.__name__}.{name} takes {parameters[1:]}; a handler takes a payload and a context."
        )
    try:
        hint = typing.get_type_hints(method).get(parameters[1], Any)
    except NameError as e:
        raise JobDefinitionError(
            f"{owner.__name__}.{name}: the payload's type cannot be resolved: {e}."
        ) from e
    if isinstance(hint, type) and hasattr(hint, "DESCRIPTOR"):
        return record_type(hint).python_class
    try:
        msgspec.json.Decoder(hint)
    except TypeError as e:
        raise JobDefinitionError(f"{owner.__name__}.{name}: {hint!r} cannot be a payload: {e}.") from e
    return hint
