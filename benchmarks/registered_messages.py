"""JSON Schema and protobuf of a registry to columns, beside the fastest libraries, in turns in one process.

penstock is given messages with the ids of their schemas, and makes the columns of a record type. JSON: msgspec decodes
and jsonschema-rs validates the same messages, whose ids are checked and cut off for them, to columns by way of pyarrow,
and of bodies alone to dictionaries and no further. Protobuf: ptars makes columns of the same messages, whose ids and
places are checked and cut off for it, and of bodies alone; protobuf's own library parses bodies to objects. Times are
those of the processor.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Callable
from typing import Any, Final

import jsonschema_rs
import msgspec
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from ptars import HandlerPool, PtarsConfig

from benchmarks.decoding_turns import measure, print_found
from benchmarks.report import print_json
from penstock.bindings.types import RegistryBinding
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type
from penstock.records.wire_formats import Format
from penstock.registries.framed_messages import HEADER, MAGIC
from penstock.registries.json_schema_format import JsonSchemaFormat
from penstock.registries.protobuf_format import RegisteredProtobufFormat
from penstock.registries.registry_client import RegisteredSchema, RegistryClient

READING: Final = record_type("sensor STRING NOT NULL, number BIGINT NOT NULL, celsius DOUBLE, room STRING")
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "sensor": {"type": "string", "minLength": 1},
        "number": {"type": "integer", "minimum": 0},
        "celsius": {"type": "number"},
        "room": {"type": ["string", "null"]},
    },
    "required": ["sensor", "number", "celsius"],
    "additionalProperties": False,
}
_HEAD: Final = HEADER.pack(MAGIC, 1)


class _Known(RegistryClient):
    """A registry that is not asked: its answers are not what is measured."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__("readings", RegistryBinding("http://none"))
        self._found: Final = RegisteredSchema(text, kind)

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:  # noqa: ARG002  # as RegistryClient
        return self._found


def _records(rows: int) -> list[dict[str, Any]]:
    return [
        {
            "sensor": f"sensor {number % 1000}",
            "number": number,
            "celsius": number / 7,
            "room": None if number % 3 else f"room {number % 100}",
        }
        for number in range(rows)
    ]


def _bodies(raw: pa.Array, head: bytes) -> list[bytes]:
    return [message[len(head) :] for message in raw.to_pylist() if message.startswith(head)]


def _decoded(form: Format, raw: pa.Array) -> int:
    found = form.decode(raw)
    if found.bad:
        raise SystemExit(f"{len(found.bad)} messages were not decoded: {found.bad[0]}")
    return len(found.batch)


def measure_json(rows: int, rounds: int) -> dict[str, Any]:
    """Return what `decoding_turns.measure` finds of JSON Schema."""
    bodies = [msgspec.json.encode(record) for record in _records(rows)]
    raw = pa.array([_HEAD + body for body in bodies], pa.binary())
    form = JsonSchemaFormat(READING, _Known(msgspec.json.encode(_SCHEMA).decode(), "JSON"))
    validator = jsonschema_rs.Draft7Validator({"type": "array", "items": _SCHEMA})
    decoder = msgspec.json.Decoder()

    def dictionaries(bodies: list[bytes]) -> list[Any]:
        values = list(map(decoder.decode, bodies))
        if not validator.is_valid(values):
            raise SystemExit("a message is not valid")
        return values

    turns: dict[str, Callable[[], int]] = {
        "penstock": lambda: _decoded(form, raw),
        "msgspec and jsonschema-rs, to columns": lambda: len(
            pa.RecordBatch.from_pylist(dictionaries(_bodies(raw, _HEAD)), schema=READING.schema)
        ),
        "msgspec and jsonschema-rs, to dictionaries, of bodies": lambda: len(dictionaries(bodies)),
    }
    return measure(turns, rows, rounds)


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="reading.proto", package="plant", syntax="proto3")
    message = file.message_type.add(name="Reading")
    kinds = {
        "sensor": FieldDescriptorProto.TYPE_STRING,
        "number": FieldDescriptorProto.TYPE_INT64,
        "celsius": FieldDescriptorProto.TYPE_DOUBLE,
        "room": FieldDescriptorProto.TYPE_STRING,
    }
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    return file


def measure_protobuf(rows: int, rounds: int) -> dict[str, Any]:
    """Return what `decoding_turns.measure` finds of protobuf."""
    file = _file().SerializeToString()
    descriptor = ProtobufSource("plant.Reading", (file,)).descriptor()
    made = message_factory.GetMessageClass(descriptor)
    bodies = [made(**record).SerializeToString() for record in _records(rows)]
    plain = pa.array(bodies, pa.binary())
    head = _HEAD + b"\0"
    raw = pa.array([head + body for body in bodies], pa.binary())
    form = RegisteredProtobufFormat(READING, _Known(base64.b64encode(file).decode(), "PROTOBUF"))
    handler = HandlerPool([descriptor.file], config=PtarsConfig()).get_for_message(descriptor)
    turns: dict[str, Callable[[], int]] = {
        "penstock": lambda: _decoded(form, raw),
        "ptars, to columns": lambda: len(
            handler.array_to_record_batch(pa.array(_bodies(raw, head), pa.binary()))
        ),
        "ptars, to columns, of bodies": lambda: len(handler.array_to_record_batch(plain)),
        "protobuf, to objects, of bodies": lambda: len(list(map(made.FromString, bodies))),
    }
    return measure(turns, rows, rounds)


def main() -> None:
    """Measure, and print two tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found = {
        "json": measure_json(options.rows, options.rounds),
        "protobuf": measure_protobuf(options.rows, options.rounds),
    }
    for name, one in found.items():
        print_found(f"Records of {name} per second of processor time", one)
    print_json(found)


if __name__ == "__main__":
    main()
