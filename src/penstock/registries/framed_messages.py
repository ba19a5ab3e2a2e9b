"""Framed messages: a zero, the id of a schema, and what the schema describes, as Confluent's serializers write them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.types import RecordType, concat_batches, empty_like, rows_where
from penstock.records.wire_formats import Decoded
from penstock.registries.registry_client import RegisteredSchema, RegistryClient, UnknownSchemaError

__all__ = [
    "HEADER",
    "MAGIC",
    "FramedMessages",
    "MessageReader",
    "framed",
    "merged",
    "offsets_of",
    "schema_of",
    "without_header",
]

MAGIC: Final = 0
HEADER: Final = struct.Struct(">bI")
# Values become Python objects, then columns; few at a time stay in the processor's cache.
_BLOCK_ROWS: Final = 4096


class MessageReader(Protocol):
    """A decoder of the messages of one schema."""

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode whole messages, each with its header; none of them is null."""


class FramedMessages:
    """A decoder of messages, each by the schema that it names.

    `reader` returns the decoder of a schema. What it raises is the reason why messages of that schema are bad. So many
    as `block_rows` are decoded at a time.
    """

    def __init__(
        self,
        record_type: RecordType,
        reader: Callable[[int], MessageReader],
        *,
        allow_nan: bool,
        block_rows: int = _BLOCK_ROWS,
    ) -> None:
        self._type: Final = record_type
        self._make: Final = reader
        self._allow_nan: Final = allow_nan
        self._block_rows: Final = block_rows
        self._readers: dict[int, MessageReader | str] = {}

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages, of each schema all at once. Raises ExternalSystemError when the registry is away."""
        pieces = []
        for first in range(0, len(raw), self._block_rows):
            block = raw.slice(first, self._block_rows)
            pieces.append((np.arange(first, first + len(block), dtype=np.int64), self._decode_block(block)))
        found = merged(pieces, self._type, [])
        reasons = self._type.missing(found.batch, allow_nan=self._allow_nan)
        if reasons is None:
            return found
        rows = np.arange(len(raw), dtype=np.int64) if found.rows is None else found.rows
        good = reasons == ""
        invalid = [(int(rows[row]), str(reasons[row])) for row in np.flatnonzero(~good)]
        return Decoded(rows_where(found.batch, good), rows[good], sorted([*found.bad, *invalid]))

    def _decode_block(self, raw: pa.Array) -> Decoded:
        ids, reasons = _ids(raw)
        pieces: list[tuple[npt.NDArray[np.int64], Decoded]] = []
        bad = [(int(row), reasons[row]) for row in np.flatnonzero(ids < 0).tolist()]
        for schema_id in _different(ids):
            places = np.flatnonzero(ids == schema_id)
            reader = self._reader(schema_id)
            if isinstance(reader, str):
                bad += [(row, reader) for row in places.tolist()]
                continue
            found = reader.decode(raw if len(places) == len(raw) else pc.take(raw, pa.array(places)))
            named = [(row, f"schema {schema_id}: {reason}") for row, reason in found.bad]
            pieces.append((places, Decoded(found.batch, found.rows, named)))
        return merged(pieces, self._type, bad)

    def _reader(self, schema_id: int) -> MessageReader | str:
        """Return what decodes messages of a schema, or why nothing can. Raises ExternalSystemError."""
        if schema_id not in self._readers:
            try:
                self._readers[schema_id] = self._make(schema_id)
            except UnknownSchemaError as e:
                # It may be registered later, so this is asked again.
                return str(e)
            except (SchemaError, RecursionError) as e:
                self._readers[schema_id] = f"the schema {schema_id} of the registry cannot be used: {e}"
        return self._readers[schema_id]


def _different(ids: npt.NDArray[np.int64]) -> list[int]:
    """Return the ids of schemas, each once."""
    # Nearly always there is one, which is seen sooner than ids are sorted.
    if len(ids) and (ids == ids[0]).all():
        return [int(ids[0])] if ids[0] >= 0 else []
    return [int(schema_id) for schema_id in np.unique(ids[ids >= 0])]


def merged(
    pieces: list[tuple[npt.NDArray[np.int64], Decoded]], record_type: RecordType, bad: list[tuple[int, str]]
) -> Decoded:
    """Return what was decoded of several parts of a column in its order, each part with its places there."""
    if len(pieces) == 1 and not bad and not pieces[0][1].bad:
        return pieces[0][1]
    rows = [places if found.rows is None else places[found.rows] for places, found in pieces]
    bad = bad + [(int(places[row]), reason) for places, found in pieces for row, reason in found.bad]
    if not pieces:
        return Decoded(empty_like(record_type.schema), np.zeros(0, np.int64), sorted(bad))
    batch, at = concat_batches([found.batch for _, found in pieces], record_type.schema), np.concatenate(rows)
    if (at[1:] < at[:-1]).any():
        order = np.argsort(at)
        batch, at = batch.take(pa.array(order)), at[order]
    return Decoded(batch, at if bad else None, sorted(bad))


def schema_of(registry: RegistryClient, schema_id: int, kind: str, form: str = "") -> RegisteredSchema:
    """Return a schema of the registry, which must be of a type. Raises SchemaError, and what the client raises."""
    found = registry.schema(schema_id, form)
    if found.kind != kind:
        raise SchemaError(f"it is of type {found.kind}, not {kind}")
    return found


def without_header(raw: pa.Array, size: int) -> pa.Array:
    """Return messages, none of them null or shorter, without their first bytes."""
    offsets = offsets_of(raw)
    # Headers and bodies are two values of one array in turns, of which only the bodies are copied.
    turns = np.empty(2 * len(raw) + 1, np.int32)
    turns[0::2], turns[1::2] = offsets, offsets[:-1] + size
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(raw), [None, pa.py_buffer(turns), raw.buffers()[2]]
    )
    return both.take(pa.array(np.arange(1, 2 * len(raw), 2)))


def offsets_of(raw: pa.Array) -> npt.NDArray[np.int32]:
    """Return where each value of a binary array begins in its data, and where the last one ends."""
    return np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1]


def framed(bodies: pa.Array, header: bytes) -> pa.Array:
    """Return bodies of messages, none of them null, with a header before each."""
    head = pa.scalar(header, pa.binary())
    return pc.binary_join_element_wise(head, bodies, pa.scalar(b"", pa.binary()))


def _ids(raw: pa.Array) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """Return the schema id of each message, -1 for bytes that are not a message, and why."""
    offsets = offsets_of(raw)
    fits = offsets[1:] - offsets[:-1] >= HEADER.size
    if raw.null_count:
        fits &= raw.is_valid().to_numpy(zero_copy_only=False)
    ids = np.full(len(raw), -1, np.int64)
    if fits.any():
        data = np.frombuffer(raw.buffers()[2], np.uint8)
        starts = offsets[:-1][fits]
        # The four bytes behind each place, without a copy.
        numbers = np.ndarray((len(data) - HEADER.size + 1,), ">u4", data, 1, (1,))
        ids[fits] = np.where(data[starts] == MAGIC, numbers[starts].astype(np.int64), -1)
    unnamed = np.flatnonzero(ids < 0)
    if not len(unnamed):
        return ids, {}
    is_valid = raw.is_valid()
    return ids, {
        row: "the message does not begin with a zero and the id of a schema, as Confluent's serializers write it"
        if is_valid[row].as_py()
        else "the value is null"
        for row in unnamed.tolist()
    }
