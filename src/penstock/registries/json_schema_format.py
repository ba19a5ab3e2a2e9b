"""JSON Schema: records as JSON with the id of their schema before them, as Confluent's serializers write them."""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BindingError
from penstock.records.types import RecordType, rows_where
from penstock.records.wire_formats import Decoded, JsonFormat, join_lines
from penstock.registries.framed_messages import (
    HEADER,
    MAGIC,
    FramedMessages,
    framed,
    schema_of,
    without_header,
)
from penstock.registries.json_schemas import schema_text, validator_of
from penstock.registries.registry_client import RegistryClient

__all__ = ["JsonSchemaFormat", "check_installed"]

_KIND: Final = "JSON"
_SHOWN: Final = 300


def check_installed(stream: str) -> None:
    """Raise BindingError when the library for JSON Schema is missing."""
    try:
        import jsonschema_rs  # noqa: F401
    except ImportError as e:
        raise BindingError(
            f"Stream {stream!r}: format=json with registry= needs jsonschema-rs. Install it with: "
            "pip install 'penstock[json-schema]'"
        ) from e


class _Reader:
    """A decoder of what one registered schema describes: the record's fields, of JSON that the schema allows."""

    def __init__(self, validator: Any, json: JsonFormat) -> None:
        self._validator: Final = validator
        self._json: Final = json
        self._plain: Final = msgspec.json.Decoder()

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages of the schema."""
        bodies = without_header(raw, HEADER.size)
        found = self._json.decode(bodies)
        if not len(found.batch):
            return found
        rows = np.arange(len(raw), dtype=np.int64) if found.rows is None else found.rows
        wanted = bodies if found.rows is None else pc.take(bodies, pa.array(found.rows))
        values = self._values(wanted)
        valid = np.fromiter(map(self._validator.is_valid, values), np.bool_, len(values))
        if valid.all():
            return found
        bad = [(int(rows[row]), self._why(values[row])) for row in np.flatnonzero(~valid)]
        return Decoded(rows_where(found.batch, valid), rows[valid], sorted([*found.bad, *bad]))

    def _values(self, bodies: pa.Array) -> list[Any]:
        """Return the values of JSON objects, which are read as lines unless some of them have line ends."""
        try:
            values: list[Any] = self._plain.decode_lines(join_lines(bodies))
        except ValueError:
            values = []
        return values if len(values) == len(bodies) else list(map(self._plain.decode, bodies.to_pylist()))

    def _why(self, value: Any) -> str:
        """Return the first thing that is wrong with a value, with the path to it."""
        error = next(self._validator.iter_errors(value))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        return f"${path}: {error.message[:_SHOWN]}"


class JsonSchemaFormat:
    """Messages of JSON Schema: a zero, the id of the schema in the registry (four bytes), and one JSON object.

    Each message is validated by the schema that it names, and decoded as JSON of the record type. For a sink,
    `registered` registers the schema of the record type.
    """

    def __init__(
        self,
        record_type: RecordType,
        registry: RegistryClient,
        *,
        allow_nan: bool = False,
        schema_id: int = 0,
    ) -> None:
        self._type = record_type
        self._registry = registry
        self._allow_nan = allow_nan
        self._schema_id = schema_id
        self._json: Final = JsonFormat(record_type, allow_nan)
        self._messages: Final = FramedMessages(record_type, self._reader, allow_nan=allow_nan)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(JsonSchemaFormat, allow_nan=self._allow_nan, schema_id=self._schema_id)
        return make, (self._type, self._registry)

    def registered(self, subject: str) -> JsonSchemaFormat:
        """Return the same format, after registration of the schema of the records that it encodes."""
        schema_id = self._registry.register(subject, schema_text(self._type), _KIND)
        return JsonSchemaFormat(self._type, self._registry, allow_nan=self._allow_nan, schema_id=schema_id)

    def _reader(self, schema_id: int) -> _Reader:
        return _Reader(validator_of(schema_of(self._registry, schema_id, _KIND)), self._json)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages, of each schema all at once. Raises ExternalSystemError when the registry is away."""
        return self._messages.decode(raw)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as JSON, with the id that the registry has given to the schema of their type."""
        return framed(self._json.encode(batch), HEADER.pack(MAGIC, self._schema_id))
