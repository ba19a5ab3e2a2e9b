"""Event headers: CloudEvents in the binary mode, whose attributes are headers of a message and whose data is its body.

A source makes an event in JSON of each, so that all that follows knows one form of events.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.types import RecordType

__all__ = [
    "EventHeaders",
    "attribute_texts",
    "event_headers_of",
    "http_header_text",
    "http_header_value",
    "is_json_data",
]

_REQUIRED: Final = ("specversion", "id", "source", "type")
_CONTENT_TYPE: Final = "content-type"
_STRUCTURED: Final = b"application/cloudevents"
_JSON_TYPE: Final = re.compile(rb"[^/;]+/(?:[^;]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
# Characters that the HTTP binding of CloudEvents leaves unchanged in headers.
_PRINTABLE: Final = bytes(code for code in range(0x21, 0x7F) if code not in b'"%')
# Such a text is a number or boolean in JSON too. Other texts stay texts, and do not fit a field of another type.
_BARE: Final = re.compile(r"true|false|-?(?:0|[1-9][0-9]*)")


@dataclass(frozen=True)
class EventHeaders:
    """The attributes of events that a source reads from headers. Those in `bare` have no quotation marks in JSON."""

    names: tuple[str, ...]
    bare: frozenset[str]
    prefix: str = "ce_"

    @property
    def headers(self) -> tuple[str, ...]:
        """The names of the headers that an event may have."""
        return (_CONTENT_TYPE, *(self.prefix + name for name in self.names))

    def is_event(self, headers: Mapping[str, bytes | None]) -> bool:
        """Return whether a message is an event in the binary mode."""
        is_structured = (headers.get(_CONTENT_TYPE) or b"").lower().startswith(_STRUCTURED)
        return not is_structured and headers.get(f"{self.prefix}specversion") is not None

    def as_json(self, headers: Mapping[str, bytes | None], body: bytes | None) -> bytes:
        """Return an event of the binary mode as JSON. Data that is not JSON is in base64, as in JSON events.

        An attribute that is not UTF-8 becomes an empty array, which no attribute can be.
        """
        event: dict[str, Any] = {}
        for name in self.names:
            value = headers.get(self.prefix + name)
            if value is not None:
                event[name] = self._value(name, value)
        if body is not None:
            event.update(_data(headers.get(_CONTENT_TYPE), body))
        return msgspec.json.encode(event)

    def _value(self, name: str, value: bytes) -> Any:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return []
        return msgspec.Raw(text.encode()) if name in self.bare and _BARE.fullmatch(text) else text

    def structured(self, values: pa.Array, headers: Mapping[str, pa.Array]) -> pa.Array:
        """Return the bodies of messages, of which those in the binary mode become events in JSON."""
        if headers[f"{self.prefix}specversion"].null_count == len(values):
            return values
        columns = {name: headers[name].to_pylist() for name in self.headers}
        bodies = values.to_pylist()
        for row, found in enumerate(zip(*columns.values(), strict=True)):
            given = dict(zip(columns, found, strict=True))
            if self.is_event(given):
                bodies[row] = self.as_json(given, bodies[row])
        return pa.array(bodies, pa.binary())


def event_headers_of(
    attributes: Sequence[tuple[str, str]], record_type: RecordType, prefix: str = "ce_"
) -> EventHeaders:
    """Return the headers that a source reads. Raises SchemaError when the record has no such field."""
    kinds = {name: record_type.field(field).arrow_type for field, name in attributes}
    bare = {name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_boolean(kind)}
    return EventHeaders(tuple(dict.fromkeys([*_REQUIRED, *kinds])), frozenset(bare), prefix)


def _data(content_type: bytes | None, body: bytes) -> dict[str, Any]:
    # Checked before it is put among the attributes, so that it is nothing but a value.
    if is_json_data(content_type, body):
        return {"data": msgspec.Raw(body)}
    return {"data_base64": base64.b64encode(body).decode()}


def is_json_data(content_type: bytes | None, body: bytes) -> bool:
    """Return whether the data of an event is JSON, as it is without a content type."""
    if content_type is not None and not _JSON_TYPE.fullmatch(content_type.strip()):
        return False
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True


def attribute_texts(column: pa.Array) -> pa.Array:
    """Return the values of a field as attributes in text, in UTF-8; null where there is none.

    >>> import datetime as dt
    >>> attribute_texts(pa.array([dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC), None])).to_pylist()
    [b'2026-05-01T12:00:00.000000Z', None]
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = pc.strftime(column.cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
    elif not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise SchemaError(f"{kind} cannot be an attribute of a CloudEvent.")
    return column.cast(pa.string()).cast(pa.binary())


def http_header_text(value: bytes) -> bytes:
    r"""Decode an attribute from an HTTP header: quoted or not, with non-ASCII characters percent-encoded.

    >>> http_header_text(b"caf%C3%A9"), http_header_text(b'"a \\"b\\""')
    (b'caf\xc3\xa9', b'a "b"')
    """
    if len(value) > 1 and value.startswith(b'"') and value.endswith(b'"'):
        value = re.sub(rb"\\(.)", rb"\1", value[1:-1])
    return urllib.parse.unquote_to_bytes(value)


def http_header_value(text: bytes) -> str:
    r"""Return the HTTP header for an attribute, percent-encoded where the binding of CloudEvents requires it.

    >>> http_header_value(b"caf\xc3\xa9 a"), http_header_text(http_header_value(b'"100%"').encode())
    ('caf%C3%A9%20a', b'"100%"')
    """
    return urllib.parse.quote_from_bytes(text, safe=_PRINTABLE)
