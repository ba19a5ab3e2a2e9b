"""Refused rows: records that a store does not take, in the form of dead letters."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.sinks.base import Encoder

__all__ = ["bodies_of"]


def bodies_of(rows: pa.RecordBatch, encoder: Encoder) -> Callable[[int], bytes]:
    """Return what encodes one of some rows when it is asked for."""

    def body(row: int) -> bytes:
        found: bytes = encoder.encode(rows.slice(row, 1))[0].as_py()
        return found

    return body
