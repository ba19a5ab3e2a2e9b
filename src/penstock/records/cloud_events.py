"""CloudEvents 1.0: records as events in JSON, with some of their fields as attributes and the others as data."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.event_headers import attribute_texts
from penstock.records.message_metadata import MessagePart, body_type, defaults_of
from penstock.records.types import Field, RecordType, python_values
from penstock.records.wire_formats import Decoded, decode_non_null, decode_pieces, join_lines, reject_invalid

__all__ = ["BATCH_CONTENT_TYPE", "EVENT_CONTENT_TYPE", "CloudEventsFormat", "binary_attributes"]

EVENT_CONTENT_TYPE: Final = "application/cloudevents+json; charset=UTF-8"
BATCH_CONTENT_TYPE: Final = "application/cloudevents-batch+json; charset=UTF-8"
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
_REQUIRED: Final = {"specversion": Literal["1.0"], "id": _Text, "source": _Text, "type": _Text}


class CloudEventsFormat:
    """Events in the structured mode: one JSON object with the attributes, and the data as another within it.

    `attributes` are fields of the record, each with the name of its attribute; the other fields are in `data`. To
    encode, `templates` are the id, the source and the type of each event, with `{field}` in them. With `is_binary` it
    encodes the data alone, and `binary_attributes` returns the attributes for the headers.
    """

    def __init__(
        self,
        record_type: RecordType,
        attributes: Sequence[tuple[str, str]],
        templates: tuple[str, str, str] | None = None,
        *,
        allow_nan: bool = False,
        is_binary: bool = False,
    ) -> None:
        """Raise SchemaError when the record has no such field, or one that cannot be an attribute."""
        self._type: Final = record_type
        self._attributes: Final = dict(attributes)
        self._templates: Final = templates
        self._allow_nan: Final = allow_nan
        self._is_binary: Final = is_binary
        for name in self._attributes:
            _check_attribute(record_type.field(name))
        for template in templates or ():
            _check_template(template, record_type)
        parts = tuple((name, MessagePart("header", attribute)) for name, attribute in attributes)
        self._has_data: Final = len(parts) < len(record_type.fields)
        self._data: Final = body_type(record_type, parts) if self._has_data else record_type
        if is_binary and not self._has_data:
            raise SchemaError(
                f"All fields of {record_type.name} are attributes of CloudEvents, so none is left for the body of a "
                "message. Add a field, or use event_mode=structured."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(CloudEventsFormat, allow_nan=self._allow_nan, is_binary=self._is_binary)
        return make, (self._type, tuple(self._attributes.items()), self._templates)

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        """A decoder of events whose attributes of the record are named for their fields, and those of no field _N."""
        defaults = defaults_of(self._type.python_class)
        specs: list[Any] = []
        names = {}
        for name, attribute in self._attributes.items():
            field = self._type.field(name)
            hint = field.python_type | None if field.nullable else field.python_type
            if attribute in _REQUIRED and field.python_type is str:
                hint = _Text
            specs.append((f"a_{name}", hint, *defaults.get(name, (None,) if field.nullable else ())))
            names[f"a_{name}"] = attribute
        for number, (attribute, hint) in enumerate(_REQUIRED.items()):
            if attribute not in names.values():
                specs.append((f"_{number}", hint))
                names[f"_{number}"] = attribute
        if self._has_data:
            specs.append(("data", self._data.python_class))
        return msgspec.json.Decoder(msgspec.defstruct("Event", specs, rename=names, kw_only=True, gc=False))

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode events."""
        return decode_non_null(raw, self._decode_values)

    def _decode_values(self, raw: pa.Array) -> Decoded:
        decoded = Decoded(*decode_pieces(raw, self._decode_all, self._type.schema))
        return reject_invalid(decoded, self._type, self._allow_nan)

    def _decode_all(self, raw: pa.Array) -> pa.RecordBatch:
        if len(raw) == 1:
            events = [self._decoder.decode(raw[0].as_py())]
        else:
            events = self._decoder.decode_lines(join_lines(raw))
            if len(events) != len(raw):
                raise ValueError("lines and events differ")
        data = self._data.batch([event.data for event in events], check=False) if self._has_data else None
        columns = []
        for field in self._type.fields:
            if field.name in self._attributes:
                values = [getattr(event, f"a_{field.name}") for event in events]
                columns.append(field.to_arrow(values, check=False))
            else:
                assert data is not None
                columns.append(data.column(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._type.schema)

    @functools.cached_property
    def _event(self) -> Any:
        """A Struct of events to encode, whose attributes without a value are left out."""
        fixed: list[Any] = [("id", str), ("source", str), ("type", str)]
        given: list[Any] = [(f"a_{name}", Any) for name in self._attributes]
        last: list[Any] = [("datacontenttype", str), ("data", Any)] if self._has_data else []
        renamed = {f"a_{name}": attribute for name, attribute in self._attributes.items()}
        return msgspec.defstruct(
            "Event", [("specversion", str), *fixed, *given, *last], rename=renamed, gc=False
        )

    @functools.cached_property
    def _row(self) -> Any:
        names = self._data.field_names
        places = {f"f{number}": name for number, name in enumerate(names)}
        return msgspec.defstruct("Row", [(place, Any) for place in places], rename=places, gc=False)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as events."""
        assert self._templates is not None, "a source does not encode"
        count = len(batch)
        if self._is_binary:
            rows = map(self._row, *(python_values(batch.column(name)) for name in self._data.field_names))
            return pa.array(msgspec.json.Encoder().encode_lines(list(rows)).split(b"\n")[:-1], pa.binary())
        columns: list[Sequence[Any]] = [["1.0"] * count]
        columns += [_filled(template, batch) for template in self._templates]
        for name in self._attributes:
            values = python_values(batch.column(name))
            columns.append([msgspec.UNSET if value is None else value for value in values])
        if self._has_data:
            data = [python_values(batch.column(name)) for name in self._data.field_names]
            columns += [["application/json"] * count, list(map(self._row, *data))]
        lines = msgspec.json.Encoder().encode_lines(list(map(self._event, *columns)))
        return pa.array(lines.split(b"\n")[:-1], pa.binary())


def binary_attributes(
    batch: pa.RecordBatch, attributes: Sequence[tuple[str, str]], templates: tuple[str, str, str]
) -> dict[str, pa.Array]:
    """Return the attributes of events in the binary mode by their names, as text in UTF-8; null where there is none."""
    found = {"specversion": pa.array([b"1.0"] * len(batch), pa.binary())}
    for name, template in zip(("id", "source", "type"), templates, strict=True):
        found[name] = pa.array(_filled(template, batch), pa.string()).cast(pa.binary())
    return found | {name: attribute_texts(batch.column(field)) for field, name in attributes}


def _check_attribute(field: Field) -> None:
    kind = field.arrow_type
    checks = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_timestamp)
    if not any(check(kind) for check in checks):
        raise SchemaError(
            f"The field {field.name!r} is {kind}, and cannot be an attribute of a CloudEvent; use text, an integer, a "
            "boolean or a timestamp."
        )


def _check_template(template: str, record_type: RecordType) -> None:
    """Raise SchemaError unless a template has a text for each record, which is never empty."""
    never_empty = bool(_FIELD.sub("", template))
    for name in _FIELD.findall(template):
        field = record_type.field(name)
        is_integer = pa.types.is_integer(field.arrow_type)
        if field.nullable or not (is_integer or pa.types.is_string(field.arrow_type)):
            raise SchemaError(
                f"{template!r} of CloudEvents has {{{name}}}, which must be a field of text or an integer, and always "
                "have a value."
            )
        never_empty = never_empty or is_integer
    if not never_empty:
        raise SchemaError(
            f"{template!r} of CloudEvents may be empty. Add text of its own, or a field that is an integer."
        )


def _filled(template: str, batch: pa.RecordBatch) -> list[Any]:
    parts = _FIELD.split(template)
    if len(parts) == 1:
        return [template] * len(batch)
    texts = [
        pa.scalar(part) if place % 2 == 0 else batch.column(part).cast(pa.string())
        for place, part in enumerate(parts)
    ]
    filled: list[Any] = pc.binary_join_element_wise(*texts, "").to_pylist()
    return filled
