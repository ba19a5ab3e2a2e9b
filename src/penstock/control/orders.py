"""Orders: commands that were read and checked, on their way to the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.control.commands import Command
from penstock.control.receipts import Place

__all__ = ["Order", "decode_orders", "encode_orders"]


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command with its place. `refusal` says why it must not be carried out; `key_groups` are those of its keys.

    `judge` is the step that keeps its id when it is refused.
    """

    place: Place
    command: Command
    judge: str = ""
    refusal: str = ""
    key_groups: Sequence[int] = ()


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(list[Order])


def encode_orders(orders: Sequence[Order]) -> bytes:
    """Orders as bytes, in JSON because the payloads are."""
    return _encoder.encode(orders)


def decode_orders(data: bytes) -> list[Order]:
    """The orders that `encode_orders` was given."""
    return _decoder.decode(data)
