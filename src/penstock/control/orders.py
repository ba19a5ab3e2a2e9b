"""Orders: commands that were read and checked, on their way to the slots of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.control.commands import Command
from penstock.control.receipts import Place

__all__ = ["Glimpse", "Order", "decode_orders", "encode_orders"]


class Order(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="_", tag="o", gc=False):
    """A command with its place. `refusal` says why it must not be carried out; `key_groups` are those of its keys.

    `judge` is the step that keeps its id when it is refused.
    """

    place: Place
    command: Command
    judge: str = ""
    refusal: str = ""
    key_groups: Sequence[int] = ()


class Glimpse(msgspec.Struct, frozen=True, tag_field="_", tag="g", gc=False):
    """What a slot sees of a command that others carry out: its id, so that all slots know the same ids."""

    place: Place
    judge: str
    id: str


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[Order | Glimpse])


def encode_orders(orders: Sequence[Order | Glimpse]) -> bytes:
    """Orders as bytes, in JSON because the payloads are."""
    return _encoder.encode(orders)


def decode_orders(data: bytes) -> list[Order | Glimpse]:
    """The orders that `encode_orders` was given."""
    return _decoder.decode(data)
