"""Actions: what a command does for one key, or for the whole step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.control.commands import Command
from penstock.control.orders import Order, decode_orders, encode_orders
from penstock.operators.accepting import payload_decoder, payload_of
from penstock.operators.binding import Binding
from penstock.operators.functions import CommandContext
from penstock.operators.step import StepCore

__all__ = ["Action", "Standing", "action_of"]

Action = Callable[[CommandContext], Iterable[Any] | None]

_MOST_STANDING: Final = 1000


def action_of(command: Command, binding: Binding) -> Action:
    """What carries out an accepted command; its payload is decoded once."""
    core = binding.core
    handler = core.handlers.get(command.kind)
    if handler is not None:
        payload = payload_of(command, handler.payload_type)
        method = getattr(binding.function, handler.method)
        return lambda ctx: method(payload, ctx)
    values = _values(command, core)
    targets = binding.shared_states if command.target.scope == "step" else binding.states

    def set_values(_: CommandContext) -> None:
        for name, value in values.items():
            targets[name].set(value)

    return set_values


def _values(command: Command, core: StepCore) -> dict[str, Any]:
    raw = payload_decoder(dict[str, msgspec.Raw]).decode(command.payload)
    declared: Any = core.shared if command.target.scope == "step" else core.states
    return {name: declared[name].value_of(value) for name, value in raw.items()}


@dataclass
class Standing:
    """The commands to all keys that also keys get which appear later: for each kind the newest.

    Of `set` the newest is kept for each state, and of commands that are effective at an event time one for each time.
    """

    orders: dict[tuple[str, str, str], Order]

    @classmethod
    def of(cls, stored: bytes) -> Standing:
        """From the stored form."""
        orders = [order for order in decode_orders(stored) if isinstance(order, Order)] if stored else []
        return cls({_identity(order): order for order in orders})

    def dump(self) -> bytes:
        """The stored form."""
        return encode_orders(list(self.orders.values())) if self.orders else b""

    def add(self, order: Order, core: StepCore) -> bool:
        """Keep a command to all keys; whether it is of a kind that is kept."""
        handler = core.handlers.get(order.command.kind)
        if handler is not None and not handler.new_keys:
            return False
        for part in _parts(order) if handler is None else [order]:
            identity = _identity(part)
            # The newest comes last, so that new keys get commands of several kinds in the order of their cuts.
            self.orders.pop(identity, None)
            self.orders[identity] = part
        while len(self.orders) > _MOST_STANDING:
            del self.orders[next(iter(self.orders))]
        return True


def _parts(order: Order) -> list[Order]:
    """A `set` of several states as one of each."""
    values = msgspec.json.decode(order.command.payload, type=dict[str, msgspec.Raw])
    if len(values) == 1:
        return [order]
    return [
        msgspec.structs.replace(
            order,
            command=msgspec.structs.replace(
                order.command, payload=msgspec.Raw(msgspec.json.encode({name: value}))
            ),
        )
        for name, value in values.items()
    ]


def _identity(order: Order) -> tuple[str, str, str]:
    command = order.command
    state = ""
    if command.kind == "set":
        state = next(iter(msgspec.json.decode(command.payload, type=dict[str, msgspec.Raw])))
    return command.kind, state, "" if command.effective_at is None else command.effective_at.isoformat()
