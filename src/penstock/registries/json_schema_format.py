"""JSON Schema: records as JSON with the id of their schema before them, as Confluent's serializers write them."""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BindingError
from penstock.records.types import RecordType
from penstock.records.wire_formats import Decoded, JsonFormat, decode_pieces, join_lines
from penstock.registries.framed_messages import (
    HEADER,
    MAGIC,
    FramedMessages,
    framed,
    merged,
    schema_of,
    without_header,
)
from penstock.registries.json_schemas import Validator, schema_text, validator_of
from penstock.registries.json_structs import structs_of
from penstock.registries.registry_client import RegistryClient

__all__ = ["JsonSchemaFormat", "check_installed"]

_KIND: Final = "JSON"
_SHOWN: Final = 300
# If a message is not decoded with all others, they are decoded in this many parts, unless there are only a few.
_PARTS: Final = 8
_FEW: Final = 64
_PLAIN: Final = (bool, int, float, str)


def check_installed(stream: str) -> None:
    """Raise BindingError when the library for JSON Schema is missing."""
    try:
        import jsonschema_rs  # noqa: F401  # whether it is installed
    except ImportError as e:
        raise BindingError(
            f"Stream {stream!r}: format=json with registry= needs jsonschema-rs. Install it with: "
            "pip install 'penstock[json-schema]'"
        ) from e


class _Reader:
    """A decoder of what one registered schema describes: the record's fields, of JSON that the schema allows."""

    def __init__(self, validator: Validator, json: JsonFormat, record_type: RecordType) -> None:
        self._validator: Final = validator
        self._structs: Final = structs_of(record_type, validator.schema)
        self._json: Final = json
        self._type: Final = record_type
        self._plain: Final = msgspec.json.Decoder()
        # Plain values are the same whether JSON is read with the record's type or without; others are read again.
        self._is_plain: Final = all(field.python_type in _PLAIN for field in record_type.fields)
        self._objects: Final = list[record_type.python_class]  # type: ignore[name-defined]  # the type is made at run time

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages of the schema: all at once, or else in ever smaller parts down to those that need a look."""
        pieces: list[tuple[npt.NDArray[np.int64], Decoded]] = []
        waiting = [(0, len(raw))]
        while waiting:
            low, high = waiting.pop()
            part = raw.slice(low, high - low)
            batch = self._structs.decode(part) if self._structs else None
            if batch is None and self._structs and high - low > _FEW:
                size = -(-(high - low) // _PARTS)
                parts = [(first, min(first + size, high)) for first in range(low, high, size)]
                waiting += reversed(parts)
                continue
            found = Decoded(batch, None, []) if batch is not None else self._validated(part)
            pieces.append((np.arange(low, high, dtype=np.int64), found))
        return merged(pieces, self._type, [])

    def _validated(self, raw: pa.Array) -> Decoded:
        """Decode and validate messages one by one."""
        bodies = without_header(raw, HEADER.size)
        values, bad = self._values(bodies)
        rows = np.arange(len(values), dtype=np.int64)
        if bad:
            rows = np.delete(rows, [row for row, _ in bad])
            values = [values[row] for row in rows]
        if not (self._validator.all_valid and self._validator.all_valid(values)):
            reasons = list(map(self._why_not, values))
            bad += [(int(row), reason) for row, reason in zip(rows, reasons, strict=True) if reason]
            valid = [row for row, reason in enumerate(reasons) if not reason]
            rows, values = rows[valid], [values[row] for row in valid]
        found = self._records(values, bodies if len(rows) == len(bodies) else pc.take(bodies, pa.array(rows)))
        if found.rows is not None:
            bad += [(int(rows[row]), reason) for row, reason in found.bad]
            rows = rows[found.rows]
        return Decoded(found.batch, rows if bad else None, sorted(bad))

    def _values(self, bodies: pa.Array) -> tuple[list[Any], list[tuple[int, str]]]:
        """Return the values of JSON texts, None for invalid ones, and the reasons. Lines are read at once."""
        try:
            values: list[Any] = self._plain.decode_lines(join_lines(bodies))
        except (ValueError, RecursionError):
            values = []
        if len(values) == len(bodies):
            return values, []
        values, bad = [], []
        for row, body in enumerate(bodies.to_pylist()):
            try:
                values.append(self._plain.decode(body))
            except (ValueError, RecursionError) as e:
                values.append(None)
                bad.append((row, str(e)))
        return values, bad

    def _records(self, values: list[Any], bodies: pa.Array) -> Decoded:
        """Return the records of valid values, which are those of some bodies."""
        if self._is_plain and (batch := self._converted(values)) is not None:
            return Decoded(batch, None, [])
        return Decoded(*decode_pieces(bodies, self._json.decode_all, self._type.schema))

    def _converted(self, values: list[Any]) -> pa.RecordBatch | None:
        """Return the records of values; None unless all of them fit."""
        try:
            return self._type.batch(msgspec.convert(values, self._objects), check=False)
        except Exception:  # a record's class may check its values, and raise anything
            return None

    def _why_not(self, value: Any) -> str:
        """Return the first thing that is wrong with a value, with the path to it; "" if it is valid."""
        if self._validator.one.is_valid(value):
            return ""
        try:
            error = next(self._validator.one.iter_errors(value))
        except ValueError as e:  # an error has a copy of the value, unless that is nested too deep
            return f"the schema does not allow it, and it is nested too deep to say why ({e})"
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
        validator = validator_of(schema_of(self._registry, schema_id, _KIND))
        return _Reader(validator, self._json, self._type)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages, of each schema all at once. Raises ExternalSystemError when the registry is away."""
        return self._messages.decode(raw)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as JSON, with the id that the registry has given to the schema of their type."""
        return framed(self._json.encode(batch), HEADER.pack(MAGIC, self._schema_id))
